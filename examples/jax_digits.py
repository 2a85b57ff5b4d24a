"""Handwritten digits for clients, and two networks of JAX for them: what `fedprox_jax.py` trains, and on what.

The networks are the MLP and the CNN of McMahan et al. (2017), made small for images of 8 times 8 pixels. A model is a
dict of arrays. For a network of your own, write its shapes and its logits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.datasets import load_digits

SIDE, DIGITS = 8, 10
HELD_OUT = 360  # of 1,797 images


class Network(NamedTuple):
    shapes: dict[str, list[int]]  # of the arrays of a model
    logits: Callable[[Any, Any], Any]  # of a model and images, [image, row, column]
    # Whether a client's steps are unrolled: a loop of Python in place of one that XLA compiles. A compiled loop is at
    # least as fast for matrices, and is compiled in a fraction of the time. But on CPUs, XLA runs convolutions more
    # slowly in such a loop: small ones as here take about three times as long, and larger ones ten times.
    unrolled: bool


def mlp(model, image):
    x = image.reshape(-1, SIDE * SIDE)
    x = jax.nn.relu(x @ model["hidden"] + model["hidden_bias"])
    x = jax.nn.relu(x @ model["dense"] + model["dense_bias"])
    return x @ model["output"] + model["output_bias"]


def convolve(x, kernel, bias):
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.nn.relu(x + bias)
    side, channels = x.shape[2:]
    return x.reshape(-1, side // 2, 2, side // 2, 2, channels).max(axis=(2, 4))  # the largest of each 2 times 2 pixels


def cnn(model, image):
    x = convolve(image[..., np.newaxis], model["first"], model["first_bias"])
    x = convolve(x, model["second"], model["second_bias"])
    x = jax.nn.relu(x.reshape(-1, len(model["dense"])) @ model["dense"] + model["dense_bias"])
    return x @ model["output"] + model["output_bias"]


def with_biases(**shapes):
    return {**shapes, **{f"{name}_bias": shape[-1:] for name, shape in shapes.items()}}


MLP_SHAPES = with_biases(hidden=[SIDE * SIDE, 64], dense=[64, 64], output=[64, DIGITS])
CNN_SHAPES = with_biases(first=[3, 3, 1, 8], second=[3, 3, 8, 16], dense=[2 * 2 * 16, 64], output=[64, DIGITS])
NETWORKS = {"MLP": Network(MLP_SHAPES, mlp, unrolled=False), "CNN": Network(CNN_SHAPES, cnn, unrolled=True)}


def initial_model(network, seed):
    random = np.random.default_rng(seed)
    model = {}
    for name, shape in network.shapes.items():
        scale = 0 if name.endswith("_bias") else np.sqrt(2 / np.prod(shape[:-1]))  # He et al. (2015)
        model[name] = random.normal(0, scale, shape).astype(np.float32)
    return model


def load_clients(num_clients, pieces_each, random):
    """Returns the images and digits of each client, and those that are held out.

    All images are sorted by digit and cut into equal pieces. So the fewer pieces a client has, the fewer kinds of
    digits (McMahan et al., 2017, section 3).
    """
    image, digit = load_digits(return_X_y=True)
    image, digit = (image / 16).astype(np.float32).reshape(-1, SIDE, SIDE), digit.astype(np.int32)
    held_out, rest = np.split(random.permutation(len(digit)), [HELD_OUT])
    pieces = np.array_split(rest[digit[rest].argsort(kind="stable")], num_clients * pieces_each)
    owned = random.permutation(len(pieces)).reshape(num_clients, pieces_each)
    clients = [np.concatenate([pieces[piece] for piece in mine]) for mine in owned]
    return [(image[rows], digit[rows]) for rows in clients], (image[held_out], digit[held_out])


def draw_batches(client, batches, batch_size, random):
    """Returns batches of a client's images in a random order, which begins anew where the images run out."""
    image, digit = client
    rows = np.resize(random.permutation(len(digit)), (batches, batch_size))
    return {"image": image[rows], "digit": digit[rows]}
