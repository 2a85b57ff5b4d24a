"""The demo on Ray."""

from fedstack.demo.training import load_example, run_rounds


def test_the_demo_on_ray_has_the_accuracies_of_the_demo(cluster) -> None:
    example = load_example()
    clients = example.load_clients(4, 0)
    on_ray = run_rounds(example, *clients, 2, 0, 1, "ray")
    assert [found.accuracy for found in on_ray] == [found.accuracy for found in run_rounds(example, *clients, 2, 0)]
