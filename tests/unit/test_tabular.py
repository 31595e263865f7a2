"""Files of text and Parquet files as people have them: the types of their columns, their values, and the notes."""

import bz2
import datetime
import gzip
import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from trainer.data.skipped import Skipped
from trainer.data.tabular import is_date, open_files, remedy, streams
from trainer.data.tabular import profile as profiles
from trainer.errors import ConfigurationError

TIME, INT, FLOAT, TEXT, BOOL = pa.timestamp("us"), pa.int64(), pa.float64(), pa.string(), pa.bool_()


def time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def zipped(members: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def read(folder: Path, files: Mapping[str, str | bytes]) -> tuple[Any, Mapping[str, list[Any]], Skipped]:
    """The files, opened; the values of their columns; and the rows that were skipped."""
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    found, skipped = open_files([folder / name for name in files], None), Skipped(10)
    names = [*found.types]
    batches = [batch for path in found.paths for batch in found.read(path, names, skipped)]
    for batch in batches:
        batch.validate(full=True)
        assert [field.type for field in batch.schema] == [*found.types.values()]
    return found, {name: [each for batch in batches for each in batch[name].to_pylist()] for name in names}, skipped


MONTH = "02/03/2024 is read with the month first, which no other value decides; write the year first if that is wrong"
UNDECIDED = "which no other value decides; write numbers without thousands separators if that is wrong"


@pytest.mark.parametrize(
    ("texts", "kind", "values", "note"),
    [
        ("1 2", INT, [1, 2], None),
        ("1 2.5", FLOAT, [1.0, 2.5], None),
        ("1e5 -.5 5.", FLOAT, [1e5, -0.5, 5.0], None),
        ("inf 1", FLOAT, [math.inf, 1.0], None),
        ("+5 6", FLOAT, [5.0, 6.0], None),
        ("9007199254740993 NA", INT, [9007199254740993, None], None),
        (
            "18446744073709551615 1",
            TEXT,
            ["18446744073709551615", "1"],
            "18446744073709551615 has more than 64 bits",
        ),
        ("01234 90210", TEXT, ["01234", "90210"], "01234 has a leading zero, so the column has texts"),
        ("01 1 A1", TEXT, ["01", "1", "A1"], "'01' and '1' are different texts"),
        ("0x1F 12", TEXT, ["0x1F", "12"], "0x1F has a leading zero"),
        ("1_000 2_000", TEXT, ["1_000", "2_000"], None),
        (
            "1.5 2 x 3",
            TEXT,
            ["1.5", "2", "x", "3"],
            "'x' in row 2 of t.csv is not a number, as other values are, ",
        ),
        ("1 2 x y z", TEXT, ["1", "2", "x", "y", "z"], None),
        ("1,5 2", FLOAT, [1.5, 2.0], "1,5 is read as 1.5"),
        ("1.286,50 2", FLOAT, [1286.5, 2.0], "1.286,50 is read as 1286.5"),
        ("1,286.50 2", FLOAT, [1286.5, 2.0], "1,286.50 is read as 1286.5"),
        ("1,286,000 2", INT, [1286000, 2], "1,286,000 is read as 1286000"),
        ("1.286.000 2", INT, [1286000, 2], "1.286.000 is read as 1286000"),
        ("0,286 1,286", FLOAT, [0.286, 1.286], "0,286 is read as 0.286"),
        ("1,286 2,500", INT, [1286, 2500], f"1,286 is read as 1286 and not as 1.286, {UNDECIDED}"),
        ("1.286 2.500", FLOAT, [1.286, 2.5], f"1.286 is read as 1.286 and not as 1286, {UNDECIDED}"),
        ("1.286 12.50", FLOAT, [1.286, 12.5], None),
        ("$5 -$1,200.50", FLOAT, [5.0, -1200.5], "$5 is read as 5"),
        ("12% 3.5%", FLOAT, [12.0, 3.5], "12% is read as 12"),
        ("1\u00a0234,5 2", FLOAT, [1234.5, 2.0], "is read as 1234.5"),
        ("1'234.5 −2", FLOAT, [1234.5, -2.0], "1'234.5 is read as 1234.5"),
        ("5kg 6kg", TEXT, ["5kg", "6kg"], None),
        ("true False TRUE", BOOL, [True, False, True], None),
        ("true 1 yes", TEXT, ["true", "1", "yes"], None),
        ("yes no no", TEXT, ["yes", "no", "no"], None),
        ("Yes yes yes NO", TEXT, ["yes", "yes", "yes", "NO"], "'Yes' is read as 'yes', which is more frequent"),
        (">50K >50K. >50K", TEXT, [">50K", ">50K", ">50K"], "'>50K.' is read as '>50K'"),
        ("NA N/A NaN null NULL ? 1", INT, [*[None] * 6, 1], None),
        ("- . None #N/A 1.5", FLOAT, [*[None] * 4, 1.5], None),
        ("- None ? NA x", TEXT, ["-", "None", None, None, "x"], None),
        ("NA ?", pa.null(), [None, None], None),
        ("2024-01-02 2024-12-31", TIME, [time("2024-01-02"), time("2024-12-31")], None),
        ("2024-01-02 ?", TIME, [time("2024-01-02"), None], None),
        ("2024/1/2 2024/12/31", TIME, [time("2024-01-02"), time("2024-12-31")], None),
        ("2024-01-02T03:04 2024-01-02", TIME, [time("2024-01-02 03:04"), time("2024-01-02")], None),
        (
            "2024-01-02T03:04:05.123456789 2024-01-02",
            TIME,
            [time("2024-01-02 03:04:05.123456"), time("2024-01-02")],
            None,
        ),
        (
            "2024-01-02T03:04:05Z 2024-01-02T03:04:05+02:00 2024-01-02",
            TIME,
            [time("2024-01-02 03:04:05"), time("2024-01-02 01:04:05"), time("2024-01-02")],
            None,
        ),
        ("2.3.2024 01.12.2024", TIME, [time("2024-03-02"), time("2024-12-01")], None),
        ("2.3.2024T4:05 01.12.2024", TIME, [time("2024-03-02 04:05"), time("2024-12-01")], None),
        ("13/02/2024 01/03/2024", TIME, [time("2024-02-13"), time("2024-03-01")], None),
        ("2/13/2024T3:04PM 02/03/2024", TIME, [time("2024-02-13 15:04"), time("2024-02-03")], None),
        ("02/13/2024 01/03/2024", TIME, [time("2024-02-13"), time("2024-01-03")], None),
        ("02/03/2024 01/03/2024", TIME, [time("2024-02-03"), time("2024-01-03")], MONTH),
        ("13/02/2024 02/13/2024", TEXT, ["13/02/2024", "02/13/2024"], "'02/13/2024' in row 1 of t.csv is not a date"),
        (
            "2024-02-28 2024-02-30",
            TEXT,
            ["2024-02-28", "2024-02-30"],
            "'2024-02-30' in row 1 of t.csv is not a date",
        ),
        ("12:30 13:00", TEXT, ["12:30", "13:00"], None),
    ],
)
def test_all_texts_of_a_column_decide_its_type(
    tmp_path: Path, texts: str, kind: pa.DataType, values: Sequence[Any], note: str | None
) -> None:
    rows = "".join(f'"{text}",0\n' for text in texts.split(" "))
    files, columns, _ = read(tmp_path, {"t.csv": f"a,y\n{rows}"})
    assert (files.types["a"], columns["a"]) == (kind, values)
    assert is_date(kind) == (kind == TIME)
    assert any(note in each for each in files.notes) if note else not files.notes


@pytest.mark.parametrize(
    ("text", "columns", "note"),
    [
        # another column decides
        (
            "a;b;c\n50.994;6,82;x\n5.806;2,33;y\n",
            {"a": [50994, 5806], "b": [6.82, 2.33], "c": ["x", "y"]},
            "a: 50.994 is read as 50994 and not as 50.994, as the numbers of b have a decimal comma",
        ),
        (
            'a,b\n"1,286",1.5\n"2,500",2.25\n',
            {"a": [1286, 2500], "b": [1.5, 2.25]},
            "a: 1,286 is read as 1286 and not as 1.286, as the numbers of b have a decimal point",
        ),
        (
            "a,b,c,d\n1.286,2.500,3.125,4.000\n",
            {"a": [1.286], "b": [2.5], "c": [3.125], "d": [4.0]},
            f"a, b, c and 1 others: 1.286 is read as 1.286 and not as 1286, {UNDECIDED}",
        ),
        ("a;b\n1,286;x\n2,5;y\n", {"a": [1.286, 2.5], "b": ["x", "y"]}, "a: 1,286 is read as 1.286"),
        (
            "d,e\n02/03/2024,31/12/2024\n",
            {"d": [time("2024-03-02")], "e": [time("2024-12-31")]},
            "d: 02/03/2024 is read with the day first, as in e",
        ),
        ("d;e\n02/03/2024;1,5\n", {"d": [time("2024-03-02")], "e": [1.5]}, "d: 02/03/2024 is read with the day first"),
        # delimiters
        ("a\tb c\n1\tx y\n", {"a": [1], "b c": ["x y"]}, "the delimiter is '\\t'"),
        ("a|b\n1|2\n", {"a": [1], "b": [2]}, "the delimiter is '|'"),
        ("1,5;2,3\n2,5;3,3\n", {"column_1": [1.5, 2.5], "column_2": [2.3, 3.3]}, "the delimiter is ';'"),
        ("id,tags,x\n1,a;b,2\n2,c;d,3\n", {"id": [1, 2], "tags": ["a;b", "c;d"], "x": [2, 3]}, None),
        ("a  b c\n1   2 3\n 4 5  6 \n", {"a": [1, 4], "b": [2, 5], "c": [3, 6]}, "the delimiter is blanks"),
        (
            '18.0   8.5\t"chevrolet chevelle"\n15.5   8.0\t"buick skylark 320"\n',
            {
                "column_1": [18.0, 15.5],
                "column_2": [8.5, 8.0],
                "column_3": ["chevrolet chevelle", "buick skylark 320"],
            },
            "the delimiter is blanks",
        ),
        ("text\nhello world\nbye now\n", {"text": ["hello world", "bye now"]}, None),
        ("sep=;\na;b\n1,5;2\n", {"a": [1.5], "b": [2]}, "the delimiter is ';'"),
        ("sep=,\r\na,b\r\n1,2\r\n", {"a": [1], "b": [2]}, None),
        ("a,b,\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}, None),
        ("a,b\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}, None),
        ("a,,b\n1,5,2\n", {"a": [1], "column_2": [5], "b": [2]}, None),
        (",a\n0,5\n", {"": [0], "a": [5]}, None),
        ("a,b\nr1,1,2\nr2,3,4\n", {"": ["r1", "r2"], "a": [1, 3], "b": [2, 4]}, None),
        # lines and quotes
        ("a,b\r\n1,2\r\n", {"a": [1], "b": [2]}, None),
        ("a,b\r1,2\r3,4\r", {"a": [1, 3], "b": [2, 4]}, None),
        ("\n\na,b\n\n1,2\n\n", {"a": [1], "b": [2]}, None),
        ('"a","b"\n"1","2,5"\n', {"a": [1], "b": [2.5]}, "b: 2,5 is read as 2.5"),
        (
            '"a,b"\n"1,""x"""\n"3,""y"""\n',
            {"a": [1, 3], "b": ["x", "y"]},
            "each line is within quotes, which are left",
        ),
        ('a, b\n1, "x, y"\n2, "z"\n', {"a": [1, 2], "b": ["x, y", "z"]}, None),
        ('t,y\n"a\nb ""c""",1\n"d\r\ne",2\n', {"t": ['a\nb "c"', "d\r\ne"], "y": [1, 2]}, None),
        ('t,y\n"say \\"a, b\\" c",1\n"d",2\n', {"t": ['say "a, b" c', "d"], "y": [1, 2]}, None),
        ('t,y\n"C:\\d\\",1\n"d",2\n', {"t": ["C:\\d\\", "d"], "y": [1, 2]}, None),
        ('"a\nb",y\n1,2\n', {"a\nb": [1], "y": [2]}, None),
        ('a,b\n5" pipe,1\n', {"a": ['5" pipe'], "b": [1]}, None),
        # headers
        ("age, work\n 39, State \n", {"age": [39], "work": ["State"]}, None),
        ("# made\n# by me\na,b\n1,2\n", {"a": [1], "b": [2]}, None),
        (
            "Report of 2024\n\nname,age,y\nBob,3,1\n",
            {"name": ["Bob"], "age": [3], "y": [1]},
            "t.csv: the first 2 lines are skipped, because they have no columns",
        ),
        ("#id,name\n1,ab\n2,cd\n", {"id": [1, 2], "name": ["ab", "cd"]}, None),
        ("# a b\n1.5 2\n3 4\n", {"a": [1.5, 3.0], "b": [2, 4]}, "the delimiter is blanks"),
        ('"a" "b"\n"x y" 1 2\n"z" 3 4\n', {"": ["x y", "z"], "a": [1, 3], "b": [2, 4]}, "the delimiter is blanks"),
        (
            "32554,393.27,1\n5542,260.11,0\n",
            {"column_1": [32554, 5542], "column_2": [393.27, 260.11], "column_3": [1, 0]},
            "the first line is taken as a row, because its values are like those below it, and the columns are called "
            "column_1 to column_3; write a line of names above it to name them",
        ),
        ("5.1,s\n4.9,v\n4.7,s\n", {"column_1": [5.1, 4.9, 4.7], "column_2": ["s", "v", "s"]}, "is taken as a row"),
        ("p,x\ne,x\np,y\ne,y\n", {"column_1": [*"pepe"], "column_2": [*"xxyy"]}, "is taken as a row"),
        (
            "3,Braund,1.25\n2,Cumings,71.3\n",
            {"column_1": [3, 2], "column_2": ["Braund", "Cumings"], "column_3": [1.25, 71.3]},
            "row",
        ),
        (
            "country,1990,1991\nA,1,2\n",
            {"country": ["A"], "1990": [1], "1991": [2]},
            "the first line is taken as the names of the columns, of which some are numbers (1990, 1991); write a line",
        ),
        ("0,1,2\n5,3,2\n", {"0": [5], "1": [3], "2": [2]}, "the first line is taken as the names of the columns"),
        ("a,b\n", {"a": [], "b": []}, None),
        # encodings
        ("\ufeffa,b\n1,2\n", {"a": [1], "b": [2]}, None),
        ("größe,b\n1,ü\n".encode("utf-16"), {"größe": [1], "b": ["ü"]}, None),
        ("a,b\n1,xx\n2,yy\n".encode("utf-16-le"), {"a": [1, 2], "b": ["xx", "yy"]}, "is read as UTF-16"),
        (
            "größe,b\n1,€\n".encode("cp1252"),
            {"größe": [1], "b": ["€"]},
            "line 1 is not UTF-8, so the file is read as",
        ),
        # compressions, whatever the name
        (gzip.compress(b"a,b\n1,2\n", mtime=0), {"a": [1], "b": [2]}, None),
        (bz2.compress(b"a,b\n1,2\n"), {"a": [1], "b": [2]}, None),
        (zipped({"t.csv": "a,b\n1,2\n", "__MACOSX/t.csv": ""}), {"a": [1], "b": [2]}, None),
    ],
)
def test_a_file_is_read_as_it_is_written(
    tmp_path: Path, text: str | bytes, columns: Mapping[str, Sequence[Any]], note: str | None
) -> None:
    files, found, skipped = read(tmp_path, {"t.csv": text})
    assert found == columns
    assert [type(each) for values in found.values() for each in values] == [
        type(each) for values in columns.values() for each in values
    ]
    assert any(note in each for each in files.notes) if note else not files.notes
    assert not skipped.count


@pytest.mark.parametrize(
    ("files", "columns", "note"),
    [
        ({"a.csv": "a,b\n1,2\n", "b.csv": "b;a\n3;4\n"}, {"a": [1, 4], "b": [2, 3]}, "b.csv: the delimiter is ';'"),
        (
            {"a.csv": "a\n1\n", "b.csv": "a\n2\nx\n"},
            {"a": ["1", "2", "x"]},
            "a: 'x' in row 1 of b.csv is not a number, as other values are, so the column has texts",
        ),
        ({"a.csv": "a\n1\n", "b.csv": "a\n0.5\n"}, {"a": [1.0, 0.5]}, None),
        (
            {"a.csv": "a\n1.5\n", "b.csv": 'a\n"2,5"\n'},
            {"a": ["1.5", "2,5"]},
            "a: '2,5' in row 0 of b.csv is not a number, as other values are",
        ),
        (
            {"a.csv": "y\n>50K\n>50K\n", "b.csv": "y\n>50K.\n"},
            {"y": [">50K"] * 3},
            "y: '>50K.' is read as '>50K', which is more frequent",
        ),
        (
            {"a.csv": "d\n02/03/2024\n", "b.csv": "d\n13/03/2024\n"},
            {"d": [time("2024-03-02"), time("2024-03-13")]},
            None,
        ),
        ({"a.csv": "a,b,\n1,2,\n", "b.csv": "a,b\n3,4\n"}, {"a": [1, 3], "b": [2, 4]}, None),
        ({"a.csv": "a,b\n1,2\n", "b.csv": "3,4\n5,6\n"}, {"a": [1, 3, 5], "b": [2, 4, 6]}, None),
        ({"a.csv": "a\n1\n", "b.csv": gzip.compress(b"a\n2\n", mtime=0)}, {"a": [1, 2]}, None),
        (
            {"a.csv": "a\n\ufffd\n", "b.csv": "a;b\n\xfc;1\n".encode("latin1")},
            {"a": ["\ufffd", "ü"]},
            "line 2 is not",
        ),
        (
            {"a.csv": "a;b\n1;2\n", "b.csv": "a;b\n3;4\n"},
            {"a": [1, 3], "b": [2, 4]},
            "a.csv and 1 other files: the d",
        ),
    ],
)
def test_all_files_decide_the_types(
    tmp_path: Path, files: Mapping[str, str | bytes], columns: Mapping[str, Sequence[Any]], note: str | None
) -> None:
    found, values, _ = read(tmp_path, files)
    assert values == columns
    assert any(note in each for each in found.notes) if note else not found.notes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.csv": ""}, "a.csv: the file is empty; a line with the names of the columns was expected."),
        ({"a.csv": '"a\n","a\n"\n1,2\n'}, "a.csv: 2 columns are named a; give each its own name."),
        ({"a.csv": '"a\nb","a\nb"\n1,2\n'}, r"a.csv: 2 columns are named a\nb; give each its own name."),
        ({"a.csv": "a,a\n1,2\n"}, "a.csv: 2 columns are named a; give each its own name."),
        (
            {"a.csv": "a,b\n1,\0\n"},
            "a.csv: line 2 has a NUL byte, so the file is damaged or not a text; write it",
        ),
        ({"a.csv": gzip.compress(bytes(range(32, 127)) * 99)[:-9]}, "a.csv: the file cannot be read (Truncated compr"),
        (
            {"a.zip": zipped({"b.csv": "a\n", "c.csv": "a\n"})},
            "a.zip: the archive has 2 files (b.csv, c.csv), but one",
        ),
        ({"a.csv": zipped({"[Content_Types].xml": ""})}, "it is a workbook, not a text; save the sheet as a CSV file."),
        ({"a.csv": 'y,t\n1,"a\n2,b\n'}, r"a.csv: the quotation mark in row 0 has no end (a\n2,b\n); add it."),
        (
            {"a.csv": "", "b.csv": "a,a\n1,2\n"},
            "a.csv: the file is empty; a line with the names of the columns was expected; ",
        ),
        (
            {"a.csv": "a,b\n1,2\n", "b.csv": "a\n1\n", "c.csv": "b\n1\n"},
            "c.csv: it has no column a, as the first file",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, files: Mapping[str, str | bytes], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, files)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_of_another_length_are_skipped_and_named(tmp_path: Path) -> None:
    _, columns, skipped = read(tmp_path, {"a.csv": "a,b\n1,2\n3\n4,5,6\n7,8\n"})
    assert columns == {"a": [1, 7], "b": [2, 8]}
    assert skipped.first == [
        "a.csv: 1 columns, but the header has 2: 3",
        "a.csv: 3 columns, but the header has 2: 4,5,6",
    ]
    with pytest.raises(
        ConfigurationError, match=r"max_skipped=10, but 11 rows cannot be used, the first ones a.csv: 1 col"
    ):
        read(tmp_path, {"a.csv": "a,b\n" + "1\n" * 20 + "1,2\n"})


def test_a_text_may_be_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.tabular.dialect.BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr("trainer.data.tabular.dialect.COLUMN_BYTES", 0)
    long = "words \n" * 1000
    text = "t,y\n" + "a,1\n" * 1000 + f'"{long}",2\n' + "b,3\n" * 1000
    _, columns, _ = read(tmp_path, {"a.csv": text})
    assert columns == {"t": ["a"] * 1000 + [long.strip()] + ["b"] * 1000, "y": [1] * 1000 + [2] + [3] * 1000}
    monkeypatch.setattr(profiles, "MOST_BYTES", 1 << 10)
    with pytest.raises(ConfigurationError, match=r"a.csv: a row after row \d+ has more than 0 MB; correct its quot"):
        read(tmp_path, {"a.csv": text})


def test_a_late_byte_that_is_not_utf8_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.tabular.dialect.SAMPLE_BYTES", 1 << 10)
    monkeypatch.setattr("trainer.data.tabular.dialect.BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr("trainer.data.tabular.dialect.COLUMN_BYTES", 0)
    files, columns, _ = read(tmp_path, {"a.csv": b"a,b\n" + b"1,x\n" * 1000 + b"2,\xfc\n"})
    assert columns == {"a": [1] * 1000 + [2], "b": ["x"] * 1000 + ["ü"]}
    assert files.notes == ["a.csv: a later line is not UTF-8, so the file is read as Latin-1 (cp1252)"]


def test_rewritten_lines_are_those_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CHUNK", 100)
    _, columns, _ = read(tmp_path, {"a.txt": "a b\n" + "".join(f" {n}   {n * n}\n" for n in range(500))})
    assert columns == {"a": [*range(500)], "b": [n * n for n in range(500)]}


def test_batches_have_a_thousand_rows_at_most_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "".join(f"{n}\n" for n in range(2500)))
    files = open_files([tmp_path / "a.csv"], None)
    batches = [batch["a"].to_pylist() for batch in files.read(tmp_path / "a.csv", ["a"], Skipped(0))]
    assert [len(each) for each in batches] == [1000, 1000, 500]
    assert [number for each in batches for number in each] == [*range(2500)]


def test_numbers_can_be_read_as_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1.50,x\n2,y\n")
    pyarrow.parquet.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    for name, values in (("a.csv", ["1.50", "2"]), ("a.parquet", ["1", "2"])):
        files = open_files([tmp_path / name], None).as_texts(["a", "absent"])
        assert files.types["a"] == TEXT
        assert [each["a"].to_pylist() for each in files.read(files.paths[0], ["a"], Skipped(0))] == [values]


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("31/1/2024", "3/4/2024", time("2024-04-03")),
        ("1/31/2024", "3/4/2024", time("2024-03-04")),
        ("1.286,50", "1.286", 1286),
        ("1,286.50", "1,286", 1286),
        ("1.28", "1.286", 1.286),
    ],
)
def test_earlier_files_decide_what_no_value_does(tmp_path: Path, before: str, after: str, value: Any) -> None:
    (tmp_path / "before.csv").write_text(f'a,b\n"{before}",x\n')
    (tmp_path / "after.csv").write_text(f'a,b\n"{after}",x\n')
    readings = open_files([tmp_path / "before.csv"], None).readings
    files = open_files([tmp_path / "after.csv"], None, {**readings, "absent": "point"})
    assert [each["a"].to_pylist() for each in files.read(files.paths[0], ["a"], Skipped(0))] == [[value]]
    assert any("as in earlier files" in note for note in files.notes)


def test_columns_can_be_read_in_the_spellings_that_they_have(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\nYES,1\nyes,1\nYES,1\nNo.,1\nmaybe,1\n,1\n")
    files = open_files([tmp_path / "a.csv"], None).as_written(["a", "b", "absent"])
    (found,) = files.read(files.paths[0], ["a", "b"], Skipped(0))
    assert found["a"].to_pylist() == ["YES", "yes", "YES", "No.", "maybe", None]
    assert found["b"].to_pylist() == ["1"] * 6


def test_a_file_that_changes_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    files = open_files([tmp_path / "a.csv"], None)
    (tmp_path / "a.csv").write_text("a\nx\n")
    with pytest.raises(ConfigurationError, match=r"a.csv: the file has changed since its columns were found \(.*; s"):
        [*files.read(tmp_path / "a.csv", ["a"], Skipped(0))]
    (tmp_path / "a.csv").unlink()
    with pytest.raises(ConfigurationError, match=r"a.csv: the file has disappeared; put it back, and start again"):
        [*files.read(tmp_path / "a.csv", ["a"], Skipped(0))]


def test_many_texts_or_long_ones_keep_their_spellings(tmp_path: Path) -> None:
    rows = [f"Name {n}" for n in range(1500)] + ["name 1"]
    files, columns, _ = read(tmp_path, {"a.csv": "a\n" + "".join(f"{row}\n" for row in rows)})
    assert (columns["a"], files.notes) == (rows, [])
    rows = ["long " * 30 + "text", "Long " * 30 + "text"]
    files, columns, _ = read(tmp_path, {"a.csv": "a,b\n" + "".join(f"{row},1\n" for row in rows)})
    assert (columns["a"], files.notes) == (rows, [])


NOW = time("2024-01-02 03:04:05")


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None], pa.int8()), INT, [1, None]),
        (pa.array([1, 2], pa.uint64()), INT, [1, 2]),
        (pa.array([1, 2**64 - 1], pa.uint64()), TEXT, ["1", "18446744073709551615"]),
        (pa.array([1.5, 2], pa.float16()), FLOAT, [1.5, 2.0]),
        (pa.array([1.5, math.nan], pa.float32()), FLOAT, [1.5, None]),
        (pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)), FLOAT, [1.25, None]),
        (pa.array([Decimal(2**60), None], pa.decimal128(38, 0)), INT, [2**60, None]),
        (pa.array([Decimal(2**70), None], pa.decimal128(38, 0)), TEXT, [str(2**70), None]),
        (pa.array([True, None]), BOOL, [True, None]),
        (pa.array(["x", ""]), TEXT, ["x", None]),
        (pa.array(["Yes", "yes", "NA"], pa.large_string()), TEXT, ["Yes", "yes", "NA"]),
        (pa.array(["a", "b"]).dictionary_encode(), TEXT, ["a", "b"]),
        (pa.array([NOW.date(), None]), TIME, [time("2024-01-02"), None]),
        (pa.array([NOW, None], pa.timestamp("ns")), TIME, [NOW, None]),
        (pa.array([NOW, None], pa.timestamp("ms", "Europe/Berlin")), TIME, [NOW, None]),
        (pa.array([[1, 2], [3]], pa.list_(pa.int32())), pa.list_(INT), [[1, 2], [3]]),
        (pa.array([[1.5], None], pa.large_list(pa.float32())), pa.list_(FLOAT), [[1.5], None]),
        (pa.array([["a"], []]), pa.list_(TEXT), [["a"], []]),
        (
            pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
            pa.list_(pa.field("element", pa.float32()), 2),
            [[1.0, 2.0]],
        ),
        (pa.array([{"bytes": b"x", "path": None}, None]), pa.binary(), [b"x", None]),
        (pa.array([b"x"], pa.large_binary()), pa.binary(), [b"x"]),
        (pa.nulls(2), pa.null(), [None, None]),
    ],
)
def test_columns_of_parquet_have_simple_types(
    tmp_path: Path, column: Any, kind: pa.DataType, values: Sequence[Any]
) -> None:
    pyarrow.parquet.write_table(pa.table({"a": column}), tmp_path / "t.parquet")
    files = open_files([tmp_path / "t.parquet"], None)
    (batch,) = files.read(tmp_path / "t.parquet", ["a"], Skipped(0))
    assert (files.types["a"], batch["a"].type, batch["a"].to_pylist(), files.notes) == (kind, kind, values, [])


def test_structs_of_parquet_become_columns_and_other_types_stay(tmp_path: Path) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 2, 3), np.float32))
    columns = {
        "s": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": 2, "b": None}]),
        "lists": pa.array([[[1]], [[2]]]),
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "time": pa.array([NOW.time(), None]),
        "tensor": tensors,
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    files = open_files([tmp_path / "t.parquet"], None)
    assert [*files.types] == ["s.a", "s.b.c", "lists", "map", "time", "tensor"]
    assert files.types["tensor"] == tensors.type
    (batch,) = files.read(tmp_path / "t.parquet", ["s.b.c", "s.a", "tensor"], Skipped(0))
    assert (batch["s.a"].to_pylist(), batch["s.b.c"].to_pylist()) == ([1, 2], ["x", None])
    assert remedy(files.types["map"]) == "write a column for each key that matters"
    assert remedy(files.types["lists"]).startswith("write one list of numbers or texts a row")
    assert remedy(files.types["time"]).startswith("write it as a number, such as of seconds")


def test_parquet_files_may_have_several_types(tmp_path: Path) -> None:
    first = pa.table({"a": [1], "b": pa.nulls(1), "c": ["x"], "d": [[1]]})
    second = pa.table({"d": [[1.5]], "c": [1], "b": [2], "a": [0.5]})
    third = pa.table({"d": [1], "c": [1], "b": [2], "a": [0.5]})
    for name, table in (("a", first), ("b", second), ("c", third)):
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    files = open_files(paths, None)
    assert files.types == {"a": FLOAT, "b": INT, "c": TEXT, "d": pa.list_(FLOAT)}
    assert files.notes == ["c: it is int64 in b.parquet, but string in a.parquet, so the column has texts"]
    rows = [
        row for path in paths for batch in files.read(path, [*files.types], Skipped(0)) for row in batch.to_pylist()
    ]
    assert rows == [{"a": 1.0, "b": None, "c": "x", "d": [1.0]}, {"a": 0.5, "b": 2, "c": "1", "d": [1.5]}]
    with pytest.raises(ConfigurationError, match=r"d is int64 in c.parquet, but list<.*> in a.parquet: write each"):
        open_files([tmp_path / "a.parquet", tmp_path / "c.parquet"], None)
    (tmp_path / "d.csv").write_text("a,b,c,d\n1,2,3,4\n")
    mixed = open_files([tmp_path / "d.csv", tmp_path / "c.parquet"], None)
    assert mixed.types == {"a": FLOAT, "b": INT, "c": INT, "d": INT}
    rows = [
        row for path in mixed.paths for batch in mixed.read(path, ["a", "d"], Skipped(0)) for row in batch.to_pylist()
    ]
    assert rows == [{"a": 1.0, "d": 4}, {"a": 0.5, "d": 1}]
