"""torch in the studies that compute with it, and its import spared to the others."""

from sim.config.study import Study


def torch_in_one_thread(study: Study) -> None:
    """Import torch if the study will compute with it, and let it use one thread.

    Clustering and convolutional models do; elsewhere the import would be half the time until round 1 begins. It is
    taken here, before any clock of the study runs. One thread, since a sum must not depend on how many cores this
    machine has.
    """
    if study.method == "gca" or study.training.model == "convolutional":
        import torch

        torch.set_num_threads(1)
