"""Mistakes: what people and programs get wrong in words, numbers and files.

Every wrong value is wrong by construction, so that no command may accept it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from neusight.devices import device_ids, load_device, to_toml
from neusight.workloads import list_workloads

FUNCTIONS = """
import sys
def raises(batch=1):
    raise ValueError("too\\nmany\\nlines")
def exits(batch=1):
    sys.exit(0)
def nothing(batch=1):
    return None
def nonsense(batch=1):
    return 1, 2
def demanding(depth):
    return None
def endless(batch=1):
    return endless(batch)
number = 3
"""
CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    **{"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 100},
}
TEXTS = ("💥", "\u202eabc", "a b c", "--", "'; drop", "%s%n", "../../..", "http://x/y", "NaN", "zzzz", "\x1b[31mred")


class Mistakes:
    """Wrong values, drawn from one generator; files of them lie in a folder."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random = random
        self.folder = folder
        self.count = 0
        (folder / "users_functions.py").write_text(FUNCTIONS)
        (folder / "users_exit.py").write_text("raise SystemExit(0)\n")
        pd.DataFrame({"gpu": ["l4"], "op": ["linear"], "dtype": ["float32"], "latency_ms": [1.0]}).assign(
            batch=1, m=64, n=64, k=64
        ).to_parquet(folder / "gemm.parquet")
        (folder / "right.json").write_text(json.dumps(CONFIG))

    def one(self, *choices: Callable[[], str]) -> str:
        return self.random.choice(choices)()

    def file(self, suffix: str, content: bytes | str) -> str:
        self.count += 1
        path = self.folder / f"wrong-{self.count}{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def text(self) -> str:
        return self.random.choice((*TEXTS, "x" * self.random.randrange(300, 20_000)))

    def mangled(self, name: str) -> str:
        """A name with a letter too many that no name has at this place."""
        place = self.random.randrange(1, len(name) + 1)
        return f"{name[:place]}qz{name[place:]}"

    def damaged_file(self, suffix: str, whole: str = "") -> str:
        """Binary, empty, cut short, a folder, or not there at all."""
        cut = whole[: self.random.randrange(1, max(2, len(whole) * 4 // 5))]
        return self.one(
            lambda: self.file(suffix, self.random.randbytes(200)),
            lambda: self.file(suffix, ""),
            lambda: self.file(suffix, cut or "{"),
            lambda: str(self.folder / f"nowhere{self.random.randrange(99)}{suffix}"),
            lambda: f"~nobody-of-this-name/x{suffix}",
            lambda: f"./{'x' * self.random.randrange(300, 20_000)}{suffix}",
            lambda: self.a_folder(suffix),
        )

    def a_folder(self, suffix: str) -> str:
        self.count += 1
        path = self.folder / f"folder-{self.count}{suffix}"
        path.mkdir()
        return str(path)

    def gpu(self) -> str:
        return self.one(
            self.text, lambda: self.mangled(self.random.choice(device_ids())), self.device_file, lambda: ","
        )

    def device_file(self) -> str:
        lines = to_toml(load_device(self.random.choice(("l4", "t4", "mi210")))).splitlines()
        figures = [place for place, line in enumerate(lines) if " = " in line and place < 24]
        place = self.random.choice(figures)
        key = lines[place].partition(" = ")[0]
        changed = {
            "gone": [],
            "absurd": [f"{key} = -1"],
            "nested": [f"{key} = {'[' * 3000}"],
            "twice": [lines[place], lines[place]],
            "renamed": [f"qz_{lines[place]}"],
            "long": [f'{key} = ["{"x" * 20_000}", 3]'],
        }
        # These may be left out of a file.
        how = self.random.choice(
            [h for h in changed if h != "gone" or not key.startswith(("aliases", "notes", "price", "die"))]
        )
        mended = "\n".join([*lines[:place], *changed[how], *lines[place + 1 :]])
        broken = how != "gone" or key not in ("compute_capability", "l2_bandwidth")
        return self.one(
            lambda: self.file(".toml", mended) if broken else self.file(".toml", ""),
            lambda: self.damaged_file(".toml", "\n".join(lines)),
        )

    def model(self) -> str:
        names = [info.name for info in list_workloads()]
        return self.one(
            lambda: f"qz-{self.text()}",
            lambda: self.mangled(self.random.choice(names)),
            self.function,
            self.config,
            self.config,
        )

    def function(self) -> str:
        names = ("raises", "exits", "nothing", "nonsense", "demanding", "endless", "number", "absent", "a b", "")
        module = self.random.choice(("users_functions",) * 6 + ("users_exit", "no_such_module", "1x", "os.path", ""))
        return f"{module}:{self.random.choice(names)}"

    def config(self) -> str:
        return self.one(
            lambda: self.damaged_file(".json", json.dumps(CONFIG)),
            lambda: self.file(".json", self.nested()),
            lambda: self.file(".json", self.random.choice(("[]", "3", "{}", "null", '{"model_type": 3}'))),
            lambda: self.file(".json", json.dumps(CONFIG | self.absurd())),
            lambda: self.file(".json", json.dumps(CONFIG | self.absurd())),
        )

    def nested(self) -> str:
        return self.random.choice(
            ('{"model_type": ' + '{"a":' * 6000, "[" * 6000, '{"protocol": 1, "a": ' + "[" * 6000)
        )

    def absurd(self) -> dict[str, Any]:
        """A key that no model can have so."""
        size = self.random.choice(("n_layer", "n_embd", "n_head", "vocab_size", "n_positions"))
        value = self.random.choice((0, -1, 10**9 + 7, 10**30, 1.5, "12", True, [0], float("nan"), float("inf")))
        others = (
            {"n_head": 3},
            {"model_type": self.mangled("gpt2")},
            {"model_type": "x" * 9000},
            {"activation_function": "poetry"},
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            {"torch_dtype": self.text()},
            {"model_type": "vgg", "stages": 3},
            {"model_type": "vgg", "stages": [[64, "x"]]},
            {"model_type": "alexnet", "dropout": "much", "image_size": 224},
            {"model_type": "encodec"},
        )
        large = size != "n_positions" or value != 10**9 + 7
        return {size: value} if large and self.random.random() < 0.6 else self.random.choice(others)

    def parquet(self) -> str:
        foreign = pd.DataFrame({"cat": ["Tom"], "mouse": ["Jerry"]})
        return self.one(
            lambda: self.damaged_file(".parquet", (self.folder / "gemm.parquet").read_bytes().decode("latin-1")),
            lambda: self.frame(foreign),
            lambda: self.frame(pd.read_parquet(self.folder / "gemm.parquet").drop(columns="latency_ms")),
            lambda: self.frame(pd.read_parquet(self.folder / "gemm.parquet").assign(m="many")),
        )

    def frame(self, frame: pd.DataFrame) -> str:
        self.count += 1
        path = self.folder / f"wrong-{self.count}.parquet"
        frame.to_parquet(path)
        return str(path)

    def document(self, right: str = "{}") -> str:
        """A JSON file that is none of this project's."""
        return self.one(
            lambda: self.damaged_file(".json", right),
            lambda: self.file(".json", self.nested()),
            lambda: self.file(".json", self.random.choice(("[]", "3", "{}", '{"protocol": 99}', '{"layers": "many"}'))),
        )

    def folder_of_models(self) -> str:
        manifest = self.one(lambda: self.nested(), lambda: "{", lambda: "[]", lambda: '{"protocol": 99}', lambda: "")
        folder = Path(self.a_folder(""))
        (folder / "gemm").mkdir()
        (folder / "gemm" / "manifest.json").write_text(manifest)
        return self.one(
            lambda: str(folder), lambda: self.a_folder(""), lambda: self.file("", "x"), lambda: "nowhere-qz"
        )

    def count_text(self) -> str:
        return self.random.choice(("0", "-1", "1.5", "many", "1e3", "9" * 30, "9" * 6000, "0x10", "nan", "1,2;3"))

    def amount(self) -> str:
        """Of minutes or percent."""
        return self.random.choice(("-1", "-0.5", "nan", "many", "", "1,5", "0x10"))

    def words(self, right: str) -> str:
        """One of several words, or a list in which one is wrong."""
        return self.one(self.text, lambda: self.mangled(right), lambda: f"{right},{self.mangled(right)}", lambda: ",")

    def change(self) -> str:
        key = self.random.choice(("sm_count", "dram_bandwidth", "tdp", "boost_clock", "matrix_flops.float16"))
        value = self.random.choice(("", "-1", "0", "fast", "1e99 W", "9" * 5000, "1 parsec", "3 GB/GB", self.text()))
        return self.one(self.text, lambda: f"{key}={value}", lambda: f"{self.mangled(key)}=3", lambda: "id=l4")

    def field(self, key: str) -> str:
        value = self.random.choice(("", "x", "0", "-4", "1.5", "9" * 30, "9" * 6000, self.text()))
        return self.one(
            lambda: f"{key}={value}",
            lambda: f"{self.mangled('n')}=4",
            lambda: f"dtype={self.mangled('float32')}",
            lambda: "bias=maybe",
            lambda: "layout=sideways",
            lambda: self.text().replace("=", "-"),
        )

    def zeros(self) -> str:
        share = self.random.choice(("2", "-0.1", "half", "", "nan"))
        return self.one(
            lambda: f"activations={share}",
            lambda: f"{self.mangled('weights')}=0.5",
            lambda: "weights=0.1,weights=0.2",
            self.document,
        )
