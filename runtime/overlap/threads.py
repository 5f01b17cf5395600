"""How the cores are shared by the two models of a pair that run at the same time."""


def default_threads(cores: int) -> tuple[int, int]:
    """Torch threads of the target and of the draft: a quarter of ``cores`` drafts, the target has the rest, each at least one.

    Examples
    --------
    >>> default_threads(8)
    (6, 2)
    """
    assert cores >= 1, cores
    draft = max(1, cores // 4)
    return max(1, cores - draft), draft
