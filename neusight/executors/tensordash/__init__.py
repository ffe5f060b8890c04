"""TensorDash, cycle by cycle: skips the zeros of one operand of every product (Mahmoud et al. 2020, arXiv 2009.00748).

``schedule`` counts the cycles of streams (``pe`` is its compiled part), ``masks`` draws zeros, ``streams`` lays
convolutions and matrix products onto tiles, ``machine`` says what the whole is and counts the cycles of kernels,
``tile_model`` has learned them, ``device`` answers for a device of the catalogue.
"""
