import numpy as np
import pytest

from fedstack.computations.values.tensor_values import quiet_context

LARGE = np.array([1e300])


def test_nothing_is_said_of_overflows_even_where_they_are_errors():
    with np.errstate(all="raise"):
        assert np.isinf(quiet_context().run(LARGE.astype, np.float32)).all()
        with pytest.raises(FloatingPointError):
            LARGE.astype(np.float32)


def test_errors_of_the_function_are_raised_and_calls_may_be_inside_of_each_other():
    with pytest.raises(ZeroDivisionError):
        quiet_context().run(lambda: quiet_context().run(lambda: 1 // 0))


def test_each_context_is_one_of_its_own():
    first, second = quiet_context(), quiet_context()
    first.run(np.seterr, all="raise")
    assert np.isinf(second.run(LARGE.astype, np.float32)).all()
    assert np.isinf(quiet_context().run(LARGE.astype, np.float32)).all()
