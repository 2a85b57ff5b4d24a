"""The picture of who has what."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedstack.data.partition import DirichletPartitioner, NaturalIdPartitioner, plot_label_distributions
from fedstack.errors import InvalidValueError

LABELS = np.random.default_rng(0).integers(0, 4, 400)
PARTITION = DirichletPartitioner(6, alpha=0.5).partition(LABELS)


def test_the_bars_of_a_client_are_as_high_as_its_numbers_of_rows():
    (axes,) = plot_label_distributions(PARTITION, LABELS).axes
    heights = np.array([[bar.get_height() for bar in bars] for bars in axes.containers])
    _, counts = PARTITION.label_counts(LABELS)
    assert heights.tolist() == counts.T.tolist()
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert tops == PARTITION.sizes.tolist()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["3", "2", "1", "0"]


def test_shares_of_a_client_add_up_to_a_hundred_percent():
    figure = plot_label_distributions(PARTITION, LABELS, plot_type="heatmap", size_unit="percent", max_num_partitions=4)
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (4, 4)
    assert np.allclose(image.sum(axis=0), 100)


def test_it_draws_on_axes_of_the_user_with_the_ids_of_the_clients():
    figure = Figure()
    who = np.where(LABELS > 1, "north", "south")
    partition = NaturalIdPartitioner().partition(who)
    found = plot_label_distributions(partition, LABELS, axes=figure.subplots(), title="hospitals")
    assert found is figure
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["north", "south"]
    assert axes.get_title() == "hospitals"


def test_many_labels_have_a_legend_of_some():
    labels = np.arange(400) % 45
    figure = plot_label_distributions(PARTITION, labels)
    figure.savefig(file := io.BytesIO(), format="png")
    assert file.getvalue().startswith(b"\x89PNG")
    assert len(figure.axes[0].get_legend().get_texts()) <= 20


@pytest.mark.parametrize("option", [{"plot_type": "pie"}, {"size_unit": "share"}, {"max_num_partitions": 0}])
def test_unknown_options_are_errors(option):
    with pytest.raises(InvalidValueError, match=f"Expected {next(iter(option))}"):
        plot_label_distributions(PARTITION, LABELS, **option)
