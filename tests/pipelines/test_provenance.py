import hashlib

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
