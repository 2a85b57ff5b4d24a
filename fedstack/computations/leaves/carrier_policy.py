"""Defines which leaf computations this process loads from others.

A reference reaches each function that a module defines, private ones too, and a caller chooses the arguments. So
modules that load code, evaluate text, start processes or write files are as good as any code. The table names those
that an administrator may think of allowing, and those that are installed with fedstack. It cannot be complete:
libraries are not written to be called by strangers.
"""

import sys
from collections.abc import Collection
from typing import TypeAlias

import attrs

from fedstack.errors import CarrierError, TypeMismatchError
from fedstack.foundations.error_text import name_text
from fedstack.foundations.value_text import describe

_PACKAGES = """
cloudpickle dill hickle joblib jsonpickle klepto pickle5 ruamel skops srsly yaml
execnet fabric invoke paramiko pexpect plumbum psutil ptyprocess sh
build conda distutils ensurepip flit flit_core hatch hatchling nox pip pip_tools pipx pkg_resources poetry setuptools
tox uv virtualenv wheel
IPython bpython debugpy ipykernel jupyter jupyter_client jupyter_core nbclient nbconvert nbformat notebook papermill
ptpython traitlets
_pytest coverage hypothesis pluggy py pytest xdist
Cython cffi cython llvmlite numba numexpr pybind11 pycparser pyximport sympy triton
PIL astropy cupy cv2 dask datasets fsspec h5py imageio matplotlib netCDF4 numpy pandas polars pyarrow s3fs scipy
sklearn smart_open statsmodels tables xarray zarr
accelerate catboost fastai flax huggingface_hub jax jaxlib keras lightgbm lightning mlflow mxnet onnx onnxruntime optax
orbax peft pytorch_lightning tensorboard tensorflow tensorflow_federated tf_keras torch torchaudio torchvision
transformers wandb xgboost
celery distributed flwr huey luigi prefect pyspark ray rpyc syft
aiohttp boto3 botocore bottle django fastapi flask httpx jinja2 mako requests sqlalchemy starlette tornado twisted
urllib3 werkzeug
absl attr attrs click federated_language fire google grpc grpc_health grpc_reflection hydra ml_dtypes omegaconf rich six
_tree colorama threadpoolctl tree typer wrapt
"""

AS_GOOD_AS_CODE = frozenset(_PACKAGES.split()) | sys.stdlib_module_names
# Of fedstack itself clients may call the training example only. The rest unpickles, starts processes and more.
_OWN, _OWN_EXAMPLE = "fedstack", "fedstack.demo"


def is_as_good_as_code(module: str) -> bool:
    """Returns whether a module, or a package around it, is known to run any code for its callers."""
    return module.partition(".")[0] in AS_GOOD_AS_CODE


def is_inside(module: str, package: str) -> bool:
    """Returns whether a module is a package or inside of it."""
    return f"{module}.".startswith(f"{package}.")


def is_internal(module: str) -> bool:
    """Returns whether a module is one of fedstack's that clients must not call."""
    return is_inside(module, _OWN) and not is_inside(module, _OWN_EXAMPLE)


# The advice for a function that can be sent by value only, to a worker of fedstack.
ALLOW_CODE = "start the worker with --allow-python-code"

# A policy as a key: modules, whether code, runtimes, whether modules have to be the same.
Rules: TypeAlias = tuple[frozenset[str], bool, frozenset[str], bool]


@attrs.define
class CarrierPolicy:
    """The carriers that this process loads from others.

    Attributes:
      modules: The modules into which references are followed, with all their submodules; `*` stands for any. It never
        includes fedstack itself, except for its example.
      python_code: Whether functions by value are loaded, which executes the sender's code. References are then followed
        into any module, since such code could import it.
      runtimes: The carriers of other runtimes that are loaded: full names of messages, or packages of them.
      strict_modules: Whether a reference is refused if the sender has another version of the module.
    """

    modules: Collection[str] = ()
    python_code: bool = False
    runtimes: Collection[str] = ()
    strict_modules: bool = False

    @property
    def rules(self) -> "Rules":
        """What the policy allows now; equal for policies that allow the same."""
        return frozenset(self.modules), self.python_code, frozenset(self.runtimes), self.strict_modules

    def allows_module(self, module: str) -> bool:
        """Returns whether a reference into `module` may be followed."""
        return self.python_code or (
            any(allowed == "*" or is_inside(module, allowed) for allowed in self.modules) and not is_internal(module)
        )

    def allows_runtime(self, carrier: str) -> bool:
        """Returns whether leaves whose content is the message `carrier` (its full name) may be loaded."""
        return self.python_code or any(is_inside(carrier, allowed) for allowed in self.runtimes)

    def check_module(self, module: str, shown: str) -> None:
        """Checks that a reference may be followed.

        Args:
          module: The module of the reference.
          shown: The reference, for error messages.

        Raises:
          CarrierError: If it may not; the message says what to do.
        """
        if self.allows_module(module):
            return
        if is_as_good_as_code(module) or is_internal(module):  # allowing one of those would allow any code
            advice = "call it in a function of a module of your own"
        else:
            advice = f"start the worker with --allow-module {name_text(module)}"
        raise CarrierError(
            f"Expected a function of an allowed module ({', '.join(self.modules) or 'none'}), found {shown}; {advice}"
        )

    @property
    def runs_anything(self) -> bool:
        """Whether clients can run any code, also indirectly: Python's own modules have `eval` and `rmtree`.

        Other runtimes count, since their abilities are not known.
        """
        in_modules = any(module == "*" or is_as_good_as_code(module) for module in self.modules)
        return self.python_code or bool(self.runtimes) or in_modules


def checked_carrier_policy(policy: object) -> CarrierPolicy:
    """Returns a policy that a user has passed.

    Raises:
      TypeMismatchError: If it is not a policy.
    """
    if not isinstance(policy, CarrierPolicy):
        raise TypeMismatchError(
            f"Expected policy as a fedstack.leaves.CarrierPolicy, found {describe(policy)}; say which functions may "
            "run, as in CarrierPolicy(modules=['mine'])"
        )
    return policy


# The policy of this process; a service has one for its clients, see `work_scope.current_policy`.
policy = CarrierPolicy()
