from __future__ import annotations

import numpy as np

from neusight.datasets import observed_tiles

# name, tile_m, tile_n, kind: the first number of a column-major library's name tiles the columns of C[m,n];
# that of a tile size its rows.
NAMES = [
    ("ampere_sgemm_128x64_tn", 64, 128, "gemm"),
    ("maxwell_sgemm_32x128_nn", 128, 32, "gemm"),
    ("volta_sgemm_64x32_sliced1x4_tn", 32, 64, "sliced_gemm"),
    ("sgemm_128x128x8_NT_vec", 128, 128, "gemm"),
    ("sgemm_32x32x32_NN", 32, 32, "gemm"),
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>(Params)", 128, 256, "cutlass"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4", 64, 128, "gemm"),
    ("Cijk_Alik_Bljk_SB_MT128x96x32_MI32x32x2x1_SE_1LDSB1_WG128_2_1", 96, 128, "tensile"),
    ("void gemv2T_kernel_val<int, int, float>(cublasGemvParams)", np.nan, np.nan, "gemv"),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4>(cublasGemmSmallNParams)", np.nan, np.nan, "gemv"),
    ("", np.nan, np.nan, ""),
]


def test_gemm_names(rows):
    for name, tile_m, tile_n, kind in NAMES:
        seen = observed_tiles(rows({"kernel_name": name})).iloc[0]
        assert seen["kind"] == kind, name
        np.testing.assert_equal((seen["tile_m"], seen["tile_n"]), (tile_m, tile_n), name)


def test_split_k_is_blocks_over_tiles(rows):
    grid = {"grid_x": 20, "grid_y": 16, "grid_z": 3}
    row = {"m": 1024, "n": 2560, "k": 2560, "kernel_name": "ampere_sgemm_128x64_tn"}
    seen = observed_tiles(rows(row | grid)).iloc[0]
    assert (seen["grid"], seen["split_k"]) == (960, 3)
    # A batch is no split.
    row = {"op": "bmm", "batch": 7, "m": 64, "n": 128, "kernel_name": "volta_sgemm_128x64_nn", "grid_z": 7}
    assert observed_tiles(rows(row)).iloc[0]["split_k"] == 1


def test_rocm_grids_are_threads(rows):
    row = {"m": 512, "n": 1024, "kernel_name": "Cijk_Alik_Bljk_SB_MT64x128x32_SE", "framework": "torch 2.4.1+rocm"}
    seen = observed_tiles(rows(row | {"grid_x": 4096, "grid_y": 4, "block_x": 256})).iloc[0]
    assert (seen["grid"], seen["split_k"]) == (64, 1)


CONVOLUTIONS = [
    ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", "", 128, 64, "implicit_gemm"),
    ("cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "", np.nan, np.nan, "winograd"),
    ("volta_sgemm_64x64_nn", ";winograd_nonfused::winogradForwardData4x4;x", np.nan, np.nan, "winograd_nonfused"),
    ("ampere_gcgemm_64x64_nt", ";fft2d_r2c_32x32;ampere_gcgemm_64x64_nt", np.nan, np.nan, "fft"),
    ("void explicit_convolve_sgemm<float, int>", "", np.nan, np.nan, "explicit_gemm"),
]


def test_convolution_names(rows):
    for name, every, tile_m, tile_n, kind in CONVOLUTIONS:
        seen = observed_tiles(rows({"op": "conv2d", "kernel_name": name, "kernel_names": every or None})).iloc[0]
        assert seen["kind"] == kind, name
        np.testing.assert_equal((seen["tile_m"], seen["tile_n"]), (tile_m, tile_n), name)


def test_launches_are_counted(rows):
    frame = rows({"kernel_names": ";a;b;c"}, {"kernel_names": None}, {"kernel_names": None, "kernel_name": ""})
    np.testing.assert_equal(list(observed_tiles(frame)["kernels"]), [3, 1, np.nan])


def test_elementwise_and_rows_follow_from_the_grid(rows):
    vector = {"op": "add", "rows": 100, "cols": 512, "grid_x": 100, "kernel_name": "vectorized_elementwise_kernel<4>"}
    reduce = {"op": "softmax", "rows": 1000, "cols": 64, "grid_x": 125, "kernel_name": "softmax_warp_forward<float>"}
    seen = observed_tiles(rows(vector, reduce))
    assert list(seen["tile_m"]) == [1, 8] and list(seen["tile_n"]) == [512, 64]
    huge = observed_tiles(rows(vector | {"rows": 2**20, "cols": 1024})).iloc[0]
    assert np.isnan(huge["tile_n"])  # several launches, of which the grid is one


def test_without_profile_all_is_unknown(rows):
    frame = rows({}, {"op": "add"}).drop(
        columns=["kernel_name", *[f"{w}_{a}" for w in ("grid", "block") for a in "xyz"]]
    )
    seen = observed_tiles(frame)
    assert seen[["tile_m", "tile_n", "split_k", "grid"]].isna().all().all() and (seen["kind"] == "").all()
