"""Defines which leaf computations from other processes this process loads.

A reference can name any function that a module defines, including private functions, and the caller chooses the
arguments. Therefore allowing a module that loads code, evaluates text, starts processes or writes files is equivalent
to allowing arbitrary code. `_PACKAGES` lists modules of this kind that an administrator might want to allow, and
modules that are installed with fedstack. The list cannot be complete, because libraries are not written for untrusted
callers.
"""

import importlib.util
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import PathFinder
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
# Clients may call no modules of fedstack except the training example, because other modules unpickle data, start
# processes and so on.
_OWN, _OWN_EXAMPLE = "fedstack", "fedstack.demo"


def is_as_good_as_code(module: str) -> bool:
    """Returns whether the top-level package of a module is known to let callers run arbitrary code."""
    return module.partition(".")[0] in AS_GOOD_AS_CODE


def is_inside(module: str, package: str) -> bool:
    """Returns whether a module is the given package or one of its submodules."""
    return f"{module}.".startswith(f"{package}.")


def is_internal(module: str) -> bool:
    """Returns whether a module is part of fedstack and must not be called by clients."""
    return is_inside(module, _OWN) and not is_inside(module, _OWN_EXAMPLE)


# The advice for a function that can only be sent by value, if the destination is a fedstack worker.
ALLOW_CODE = "start the worker with --allow-python-code"

# The fields of a policy as a cache key: modules, python_code, runtimes, strict_modules, jax_exports.
Rules: TypeAlias = tuple[frozenset[str], bool, frozenset[str], bool, bool]


@attrs.define
class CarrierPolicy:
    """The rules for loading leaf computations that other processes send.

    Attributes:
      modules: The modules whose functions may be loaded by reference, including all submodules; `*` stands for all
        modules. The modules of fedstack itself are never allowed, except `fedstack.demo`.
      python_code: Whether functions may be loaded by value, which executes the sender's code. If so, references to any
        module are allowed as well, since the sender's code could import the module anyway.
      runtimes: The carriers of other runtimes that may be loaded, as full names of messages or names of protobuf
        packages.
      strict_modules: Whether a reference is rejected if the sender has a different version of the module.
      jax_exports: Whether functions that JAX has exported may be loaded. They run no Python code, but their parser is
        no sandbox. A server that other machines can call without a token or a certificate sets this to `False`.
    """

    modules: Collection[str] = ()
    python_code: bool = False
    runtimes: Collection[str] = ()
    strict_modules: bool = False
    jax_exports: bool = True

    @property
    def rules(self) -> "Rules":
        """The current rules as a hashable value, which is equal for policies with equal rules."""
        return (
            frozenset(self.modules),
            self.python_code,
            frozenset(self.runtimes),
            self.strict_modules,
            self.jax_exports,
        )

    @property
    def missing_modules(self) -> list[str]:
        """Those of the listed modules that are not installed here."""
        return [module for module in self.modules if module != "*" and not _is_installed(module)]

    def allows_module(self, module: str) -> bool:
        """Returns whether a function of `module` may be loaded by reference."""
        return self.python_code or (
            any(allowed == "*" or is_inside(module, allowed) for allowed in self.modules) and not is_internal(module)
        )

    def allows_runtime(self, carrier: str) -> bool:
        """Returns whether leaves whose content is a message with the full name `carrier` may be loaded."""
        return self.python_code or any(is_inside(carrier, allowed) for allowed in self.runtimes)

    def check_module(self, module: str, shown: str) -> None:
        """Checks that a function of `module` may be loaded by reference.

        Args:
          module: The module of the reference.
          shown: The text of the reference, for error messages.

        Raises:
          CarrierError: If the policy does not allow the module. The message contains advice.
        """
        if self.allows_module(module):
            return
        if is_as_good_as_code(module) or is_internal(module):  # allowing the module would allow arbitrary code
            advice = "call it in a function of your own module, and allow that module"
        else:
            advice = f"start the worker with --allow-module {name_text(module)}"
        raise CarrierError(
            f"Expected a function of an allowed module ({', '.join(self.modules) or 'none'}), found {shown}; {advice}"
        )

    @property
    def runs_anything(self) -> bool:
        """Whether clients can run arbitrary code, directly or through modules with functions such as `eval`.

        The result is also True if `runtimes` lists any runtime, since what those runtimes can run is unknown.
        """
        in_modules = any(module == "*" or is_as_good_as_code(module) for module in self.modules)
        return self.python_code or bool(self.runtimes) or in_modules


def _is_installed(module: str) -> bool:
    """Returns whether a module can be found. The module is not imported, since that would run its code."""
    if module in sys.modules:  # some have no place of their own, such as `os.path`
        return True
    path: Sequence[str] | None = None
    names = module.split(".")
    for depth in range(len(names)):
        name = ".".join(names[: depth + 1])
        try:
            found = PathFinder.find_spec(name, path) if depth else importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
        if found is None:
            return False
        path = list(found.submodule_search_locations or ())
    return True


def checked_carrier_policy(policy: object) -> CarrierPolicy:
    """Checks a policy that a user has passed and returns it.

    Raises:
      TypeMismatchError: If the argument is not a `CarrierPolicy`.
    """
    if not isinstance(policy, CarrierPolicy):
        raise TypeMismatchError(
            f"Expected policy to be a fedstack.leaves.CarrierPolicy, found {describe(policy)}; specify which functions "
            "may run, as in CarrierPolicy(modules=['mine'])"
        )
    return policy


# The policy of this process. A service has its own policy for its clients, see `work_scope.current_policy`.
policy = CarrierPolicy()
