"""When learning stops: as early as the held-out devices cannot tell it from the best."""

from neusight.learn.folds import Fold, best_stop


def folds(*histories: list[float]) -> list[Fold]:
    return [Fold(gpu=f"gpu{i}", history=h, ratios=[], mape={}) for i, h in enumerate(histories)]


def test_a_gain_on_every_device_is_taken_however_different_their_levels():
    # Level differences between devices are ten times the gain; differences fold by fold still show it.
    found = best_stop("mlp", folds([0.30, 0.25, 0.251], [0.80, 0.75, 0.752], [1.30, 1.25, 1.249]))
    assert found == {"stop": 1}


def test_a_gain_on_one_device_and_a_loss_on_another_is_no_reason_to_learn_on():
    found = best_stop("mlp", folds([0.30, 0.20, 0.19], [0.30, 0.38, 0.38], [0.30, 0.30, 0.31]))
    assert found == {"stop": 0}


def test_boosting_counts_tens_of_rounds_and_other_backends_have_no_epochs():
    history = folds([0.5, 0.3], [0.6, 0.4])
    assert best_stop("gbm", history) == {"rounds": 20}
    assert best_stop("linear", history) == {}
    assert best_stop("mlp", history[:1]) == {}
