"""What made a checkpoint is told by digests."""

from pathlib import Path

from remote.provenance import code_digest


def test_the_digest_of_the_code_is_of_names_and_contents_of_all_that_runs(tmp_path: Path) -> None:
    module, source = tmp_path / "a.py", tmp_path / "models" / "b.cpp"
    source.parent.mkdir()
    found = []
    for texts in (("1", "2"), ("1", "3"), ("2", "2")):
        module.write_text(texts[0])
        source.write_text(texts[1])
        found.append(code_digest(tmp_path))
    for name in ("c.cpp", "c.h"):
        source = source.rename(source.with_name(name))
        found.append(code_digest(tmp_path))
    (tmp_path / "notes.txt").write_text("not run")
    assert len(set(found)) == 5
    assert code_digest(tmp_path) == found[-1]
