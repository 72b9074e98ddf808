"""skorch in scikit-learn's searches, whose jobs are loky's processes."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
skorch = pytest.importorskip("skorch", reason="pip install -r requirements-clients.txt")

from sklearn.model_selection import GridSearchCV  # noqa: E402

import slipring.torch  # noqa: E402


class Slope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)


def searched(loader_class, num_workers):
    """Return the scores of a search for a learning rate, and the losses of the winner's training."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(48, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    net = skorch.NeuralNetRegressor(
        Slope, max_epochs=2, batch_size=8, verbose=0, train_split=None,
        iterator_train=loader_class, iterator_valid=loader_class,
        iterator_train__num_workers=num_workers, iterator_valid__num_workers=num_workers,
    )  # fmt: skip
    search = GridSearchCV(net, {"lr": [0.01, 0.1]}, n_jobs=2, cv=2, scoring="r2", error_score="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(x, y)
    scores = search.cv_results_["mean_test_score"].tolist()
    return search.best_params_, scores, search.best_estimator_.history[:, "train_loss"]


@pytest.fixture
def jobs():
    """End the processes of the search after the test."""
    yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True, kill_workers=True)


@pytest.mark.leaks_ok("joblib keeps a resource tracker, and a folder for memory maps until the program ends")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_grid_search_in_several_jobs_scores_as_with_torchs_loader(jobs, num_workers):
    theirs = searched(torch.utils.data.DataLoader, 0)
    assert searched(slipring.torch.DataLoader, num_workers) == theirs
