"""Knows modules whose functions are as good as any code to whoever may call them with arguments of their choice.

A reference reaches each function that a module defines, private ones too. So these packages have in them what loads
code, evaluates text, starts processes or writes files. The table names what an administrator may think of allowing, and
what is installed wherever fedstack is; it cannot be complete. Libraries are not written to be called by strangers.
"""

import sys

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
# What clients may call of fedstack itself: its own training example. The rest unpickles, starts processes and more.
_OWN, _OWN_EXAMPLE = "fedstack", "fedstack.demo"


def is_as_good_as_code(module: str) -> bool:
    """Tells whether a module, or a package around it, is known to run any code for its callers."""
    return module.partition(".")[0] in AS_GOOD_AS_CODE


def is_inside(module: str, package: str) -> bool:
    """Tells whether a module is a package or inside of it."""
    return f"{module}.".startswith(f"{package}.")


def is_internal(module: str) -> bool:
    """Tells whether a module is one of fedstack's own that no client has anything to do with."""
    return is_inside(module, _OWN) and not is_inside(module, _OWN_EXAMPLE)
