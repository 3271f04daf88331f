"""The table of contrastive accuracy that the demo prints."""

from experiments.documents import main, table


def cells(all_, **phenomena):
    distances = {str(d): 100.0 if d <= 4 else 50.0 + d for d in range(1, 13)}
    return {"all": all_, **phenomena, "by_distance": distances, "examples": 60}


def test_a_line_for_each_run_and_kind_of_context():
    lines = table(
        {
            "a": {"true": cells(90.0, noun=80.0), "none": cells(50.0, noun=50.0)},
            "b": {"true": cells(60.0, noun=1.0)},
        }
    ).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["run", "context", "noun", "distance 1-4", "distance 5-8", "distance 9-12", "all"]
    assert rows[2:] == [
        ["a", "true", "80.0", "100.0", "56.5", "60.5", "90.0"],
        ["a", "none", "50.0", "100.0", "56.5", "60.5", "50.0"],
        ["b", "true", "1.0", "100.0", "56.5", "60.5", "60.0"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_a_missing_run_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 2
    assert "no such run directory" in capsys.readouterr().err
    assert main([]) == 2
    assert capsys.readouterr().err == "error: no run: give one or more run directories\n"


def test_fewer_sets_than_the_table_has_places_are_refused(tmp_path, capsys):
    assert main([str(tmp_path), "--sets", "35"]) == 2
    assert "error: --sets 35: " in (said := capsys.readouterr().err) and "give at least 36" in said
