import hashlib
import subprocess

import pytest

from pipelines.measuring import bench, provenance


def test_the_code_hash_covers_real_files(tmp_path, monkeypatch):
    before = provenance.source_hash(bench.MEASURED_CODE)
    assert before != hashlib.sha256().hexdigest() and before == provenance.source_hash(bench.MEASURED_CODE)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    (tmp_path / "code").mkdir()
    with pytest.raises(AssertionError, match="holds no Python files"):
        provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 1")
    one = provenance.source_hash(["code"])
    (tmp_path / "code" / "a.py").write_text("x = 2")
    assert provenance.source_hash(["code"]) != one
    two = provenance.source_hash(["code"], but="code/training")
    (tmp_path / "code" / "training").mkdir()
    (tmp_path / "code" / "training" / "b.py").write_text("x = 3")
    assert provenance.source_hash(["code"], but="code/training") == two != provenance.source_hash(["code"])


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    made = subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True, text=True)
    return made.stdout.strip()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A repository, and the module as a file of a copy in it."""
    copy = tmp_path / "copy" / "provenance.py"
    copy.parent.mkdir()
    copy.write_text("")
    (tmp_path / "other").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "--quiet", "--message=one")
    monkeypatch.setattr(provenance, "ROOT", copy.parent)
    monkeypatch.setattr(provenance, "__file__", str(copy))
    return tmp_path


def test_a_repository_around_a_copy_gives_no_commit(copied):
    assert provenance.provenance({})["commit"] is None
    git(copied, "add", "copy")
    git(copied, "commit", "--quiet", "--message=two")
    assert provenance.provenance({})["commit"] == git(copied, "rev-parse", "HEAD"), "once it is the repository's own"


def test_a_hook_of_another_repository_does_not_decide(copied, monkeypatch, tmp_path_factory):
    git(copied, "add", "copy")
    git(copied, "commit", "--quiet", "--message=two")
    own = git(copied, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("empty")))
    assert provenance.provenance({})["commit"] == own


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_without_git_there_is_no_commit(monkeypatch, tmp_path, path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", path and str(tmp_path / path))
    assert provenance.provenance({})["commit"] is None
