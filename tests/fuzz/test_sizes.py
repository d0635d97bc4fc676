"""Sizes that are claimed and not there: every reader ends in one line, in little memory and time."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.sizes import CASES, MOST_S

ROOT = Path(__file__).parents[2]
FOLDERS = ("mdl", "transport", "sim", "scheduler", "peers")
# What parses bytes, or opens a file to do so.
_READERS = frozenset(
    (
        *("open_regular", "read_bytes", "read_text", "read_lines", "read_sealed", "decode_json", "decode_toml"),
        *("read_safetensors", "safe_open", "decode_tensors", "load_arrays", "open_members", "open_text", "open_blocks"),
        *("frombuffer", "memmap", "GzipFile", "ZipFile", "decompressobj", "loads", "ParserCreate"),
    )
)
# Files that end in what can be read of them: a warning, and what is there beside it.
GOES_ON = (
    *("cache: ", "rounds: ", "names: a line of 64 MB", "record: a ballot", "record: an inc"),
    "message: a transfer of terabytes",
)

# Every function that parses bytes -> a case that goes through it (as CASES begin), or why it needs none.
SELF = "writes"  # it makes the bytes, or views those that are there
OWN = "its own process"  # what mdl has said to itself, or the system says
LINE = "a line of its own file"  # bounded where the file is read
COVERED: dict[str, str] = {
    "scheduler/rounds/world.py:read_phones": "phones: ",
    "transport/trust/membership.py:encode_readable": SELF,
    "mdl/config.py:_parse_value": "the command line",
    "peers/colla/model/update_codec.py:pack_parts": SELF,
    "peers/colla/model/update_codec.py:unpack_parts": "parts: ",
    "peers/colla/model/model_kinds.py:RecurrentKind.unpack": "kind: places, ",
    "peers/colla/model/model_kinds.py:WindowKind.unpack": "kind: windows, ",
    "peers/colla/model/model_kinds.py:WindowKind.apply_update": "update: of windows",
    "peers/colla/files.py:write_progress": SELF,
    "peers/colla/files.py:read_progress.read": "own: ",
    "peers/colla/model/update_codec.py:apply_update": "update: of places",
    "peers/colla/model/update_codec.py:decode_tensors": "lesson: ",
    "mdl/config.py:_read_toml": "config: ",
    "mdl/data/cache.py:_read": "windows: ",
    "mdl/data/cache.py:_map": "windows: ",
    "mdl/data/readers/places.py:read_clusters": "clusters: ",
    "mdl/data/parcel.py:read_parcel": "shared: ",
    "mdl/data/readers/public_logs.py:read_logs": "mhealth: ",
    "mdl/data/readers/unimib.py:read_matrix": "matlab: a bomb",
    "mdl/data/readers/unimib.py:_matrix": "matlab: a matrix",
    "mdl/data/readers/public_logs.py:read_opportunity": "opportunity: ",
    "mdl/data/readers/unimib.py:read_unimib": "unimib: ",
    "mdl/data/sources.py:_of_file.prepare": "the reader of the source, which is named here",
    "mdl/data/readers/archive.py:_Folder.read": "read_bytes with LARGEST_MEMBER_BYTES",
    "mdl/data/readers/archive.py:_Folder.open": "opens; who reads is named here",
    "mdl/data/readers/archive.py:open_members": "uci-har: a zip within",
    "mdl/data/readers/archive.py:list_files": "opens; who reads is named here",
    "mdl/data/readers/archive.py:_read_array": "npz: an array",
    "mdl/data/readers/archive.py:_open_zip": "npz: a zip bomb",
    "mdl/data/readers/archive.py:_encoding_of": "csv: a gzip bomb",
    "mdl/data/readers/archive.py:TextBlocks.fill": "csv: a gzip bomb",
    "mdl/data/readers/archive.py:open_raw": "csv: a zip bomb of text",
    "mdl/data/readers/archive.py:_open_unpacked": "csv: a gzip bomb",
    "mdl/data/readers/archive.py:unpack_text": "mhealth: a zip bomb",
    "mdl/data/readers/arrays.py:read_npz": "npz: ",
    "mdl/data/readers/csv_streams.py:gather_targets": SELF,
    "mdl/data/readers/csv_streams.py:gather_windows": "csv: a window",
    "mdl/data/readers/images.py:read_images": SELF,
    "mdl/data/readers/images.py:read_image": "images: ",
    "mdl/data/readers/images.py:_gather": SELF,
    "mdl/data/readers/places.py:_read_file": "places: ",
    "mdl/data/readers/semg.py:_read_npz": "semg: an array",
    "mdl/data/readers/semg.py:_read_text": "semg: a zip within",
    "mdl/data/readers/uci_har.py:_read_npz": "uci-har: an array",
    "mdl/data/readers/uci_har.py:_read_text": "uci-har: a zip within",
    "mdl/data/tables/rows.py:take_apart": "csv: a quote",
    "mdl/data/tables/dialect.py:find_dialect": "csv: ",
    "mdl/data/tables/dialect.py:parse_line": "csv: a billion columns",
    "mdl/data/tables/rows.py:read_rows": "csv: a quote",
    "mdl/data/tables/rows.py:_parse_rows": "csv: a quote",
    "mdl/data/tables/stretches.py:list_stretches": SELF,
    "mdl/data/windows.py:iterate_blocks": SELF,
    "mdl/devices/scenario.py:load_scenarios": "scenario: ",
    "mdl/files/ballot.py:_read_slot": "record: a ballot",
    "mdl/files/ballot.py:name_boot": OWN,
    "mdl/files/checkpoint.py:read_safetensors": "cache: ",
    "mdl/files/checkpoint.py:read_metadata": "cache: ",
    "mdl/files/checkpoint.py:_read_cache": "cache: ",
    "mdl/files/checkpoint.py:_is_whole": "own: ",
    "mdl/files/checkpoint.py:_read_header": "cache: a header",
    "mdl/files/checkpoint.py:_is_as_sealed": "the header of a file that safetensors has read",
    "mdl/protocol/coding.py:unpack": "message: packed values of another size",
    "mdl/files/checkpoint.py:write_packed": SELF,
    "mdl/files/checkpoint.py:read_packed": "cache: ",
    "mdl/files/export.py:export_state": SELF,
    "mdl/files/export.py:read_description": "model: ",
    "mdl/files/export.py:import_model": "model: ",
    "mdl/files/export.py:_decode": "model: ",
    "mdl/files/kept.py:read_sealed": "record: nested",
    "mdl/files/kept.py:_is_whole": "record: nested",
    "mdl/files/figures.py:read_rounds": "rounds: ",
    "mdl/locks.py:owner_of": OWN,
    "mdl/files/state_file.py:StateFile.save": SELF,
    "mdl/files/state_file.py:StateFile._read": "cache: an optimizer",
    "mdl/files/state_file.py:_read_whole": "cache: an optimizer",
    "peers/deeptype/model/study.py:save_study": SELF,
    "peers/deeptype/model/study.py:load_study": "study: ",
    "peers/deeptype/model/corpus.py:read_telegram": "text: a chat nested deep",
    "peers/deeptype/model/corpus.py:read_sms": "text: an SMS backup",
    "peers/deeptype/model/corpus.py:_read_file": "text: one line",
    "peers/deeptype/model/corpus.py:_read_entries": "text: entries",
    "peers/deeptype/model/corpus.py:_read_zip": "text: a zip bomb",
    "peers/deeptype/model/model_file.py:save_next_word": SELF,
    "peers/deeptype/model/model_file.py:load_next_word": "words: ",
    "peers/deeptype/model/model_file.py:save_onnx": SELF,
    "mdl/protocol/segments.py:mask_of": "SegmentBits bounds it",
    "mdl/reading.py:read_bytes": "config: a gigabyte",
    "mdl/reading.py:read_text": "config: a gigabyte",
    "mdl/reading.py:read_system_line": OWN,
    "mdl/reading.py:read_lines": "scenario: ",
    "mdl/reading.py:decode_json": "record: nested",
    "mdl/reading.py:decode_toml": "config: nested",
    "peers/dccl/model/lesson.py:pack_lesson": SELF,
    "peers/dccl/model/lesson.py:read_lesson": "lesson: sizes of 8 GB",
    "peers/dccl/model/readers.py:_read_csv": "log: a billion",
    "peers/dccl/model/readers.py:read_titles": "log: a billion",
    "peers/dccl/model/readers.py:_open_movielens": "log: a zip bomb",
    "peers/dccl/model/readers.py:_object": "log: objects",
    "peers/dccl/model/readers.py:_split": "log: a billion",
    "peers/dccl/model/readers.py:_read_sequences": "log: sequences",
    "peers/dccl/model/readers.py:_read_profiles": "log: a gzip bomb",
    "peers/dccl/model/lesson.py:read_vector": "vector: ",
    "transport/discovery/interfaces.py:remembered": OWN,
    "transport/discovery/interfaces.py:_unready": OWN,
    "transport/discovery/mdns.py:describe": SELF,
    "transport/discovery/mdns.py:read_description": "message: an announcement",
    "transport/wire/codec.py:decode": "message: an array",
    "transport/wire/codec.py:_refuse_version": "message: an array",
    "transport/wire/incoming.py:CheckedHash.update": SELF,
    "transport/wire/incoming.py:SumHash.update": SELF,
    "transport/wire/bulk.py:read_segment": "message: a segment",
    "sim/plans/fault_plan.py:load_plan": "plan: ",
    "scheduler/explain/decide_lines.py:_parse": "a line of the user's own program, bounded where it is read",
    "scheduler/explain/recorded_round.py:read_policy": "config: ",
    "scheduler/given.py:describe_choice": "config: a gigabyte",
    "scheduler/policies/qnet_numpy.py:read_policy": "policy: ",
    "peers/cli/sim.py:_load_found": "story: a search",
    "peers/cli/sim.py:_read_plan": "plan: ",
    "peers/doctor/device.py:build_own_model": OWN,
    "peers/doctor/device.py:main": OWN,
    "peers/edge/best.py:BestModel.look": SELF,
    "peers/edge/best.py:read_best": "cache: ",
    "peers/colla/files.py:CloudFiles.state": "cache: ",
    "peers/colla/files.py:CloudFiles._read_pupils": "cache: ",
    "peers/colla/files.py:CloudFiles._catalogues": "record: nested",
    "peers/colla/files.py:CloudFiles._read_newest": "record: nested",
    "peers/colla/files.py:CloudFiles._write": SELF,
    "peers/colla/files.py:CloudFiles._bytes": "cache: ",
    "peers/cloud/names.py:_read": "names: ",
    "peers/cloud/names.py:_is_torn": "names: ",
    "peers/cloud/names.py:_write_all": SELF,
    "peers/colla/edge.py:_read_record": "record: nested",
    "peers/edge/device.py:keep_delta": SELF,
    "peers/edge/identity.py:read_code": "config: a gigabyte",
    "peers/edge/identity.py:_next_incarnation": "record: an incarnation",
    "peers/edge/membership.py:_decode": "roster: ",
    "peers/edge/membership.py:_is_marked": SELF,
    "peers/edge/membership.py:_load_worked": "roster: ",
    "peers/edge/membership.py:_read_roster": "roster: ",
    "peers/edge/membership.py:_read": "config: a gigabyte",
    "peers/edge/relearner.py:Relearner._wait": OWN,
    "peers/edge/relearner.py:_read_learned": "record: nested",
    "peers/edge/relearner.py:main": SELF,
    "peers/edge/resume.py:describe_state": SELF,
    "peers/edge/resume.py:restore_state": "cache: ",
    "peers/edge/resume.py:initial_values": "init: ",
    "peers/edge/gatekeeper.py:Sensors._power": OWN,
    "peers/edge/gatekeeper.py:Sensors._wifi": OWN,
    "peers/edge/gatekeeper.py:read_sensors_file": "record: sensors",
    "peers/edge/small.py:_read": OWN,
    "peers/edge/small.py:board_model": OWN,
    "peers/launch/nursery.py:wait_for_a_command": OWN,
    "peers/launch/processes.py:Child._read_problem": OWN,
    "peers/launch/processes.py:Child.result": OWN,
    "peers/launch/run_directory.py:CycleReader.look": LINE,
    "peers/launch/run_directory.py:_round_of": "model: ",
    "peers/launch/up.py:_read_cycles": OWN,
    "peers/launch/run_directory.py:Verifier._read": "cache: ",
    "peers/launch/run_directory.py:kept_delta": OWN,
    "peers/dccl/databases.py:read_url": "config: a gigabyte",
    "peers/deeptype/home.py:read_record.read": "record: nested",
    "peers/dccl/edge.py:_find_record.read": "record: nested",
    "peers/dccl/databases.py:VectorStore.read": "vector: ",
    "peers/view/report.py:read_described": "model: ",
    "peers/sharing.py:_read_book": "record: nested",
    "peers/sharing.py:read_taken": "record: nested",
    "peers/sharing.py:GivenFiles.read": SELF,
    "peers/trials/campaign.py:load_found": "story: a search",
    "peers/trials/story_file.py:_builtins": SELF,
    "peers/trials/story_file.py:load_story": "story: of a run",
    "peers/trials/story_file.py:_read_header": "story: of a run",
    "peers/view/terminal.py:_tell_changes": SELF,
    "peers/use/inference.py:_follow": "opens; who reads is named here",
    "peers/use/portable.py:_check_parameters": SELF,
    "peers/deeptype/typing_session.py:_read_keys": "keys of a terminal",
    "peers/use/inference.py:_load_places": "where: ",
    "peers/web/app.py:PageFiles.__init__": "files of the package",
    "peers/web/sources.py:Cycles.look": LINE,
    "peers/web/opening.py:_read": "config: a gigabyte",
    "peers/web/sources.py:_read_result": "record: nested",
}


def _functions() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from (f"{path.relative_to(ROOT)}:{name}" for name in _in_tree(ast.parse(path.read_bytes()), ""))


def _in_tree(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call) and _parses(child.func):
            yield name
        yield from _in_tree(child, inner)


def _parses(called: ast.expr) -> bool:
    name, of = getattr(called, "attr", getattr(called, "id", "")), ast.unparse(getattr(called, "value", called))
    if name == "decode":
        return "msgspec" in of or of.endswith("decoder")
    if name == "load":
        return of in ("np", "load")
    return name in _READERS or (name == "reader" and of == "csv") or (name == "open" and of == "Image")


def test_every_function_that_parses_bytes_is_named_with_its_case():
    found = {name for name in _functions() if name != "mdl/reading.py:"}
    assert found - COVERED.keys() == set(), "name them in COVERED, with a case of tests/fuzz/sizes.py"
    assert COVERED.keys() - found == set(), "these are gone"
    for name, case in COVERED.items():
        if case.partition(": ")[0] in {each.partition(": ")[0] for each in CASES}:
            assert any(each.startswith(case) for each in CASES), (name, case)


@pytest.mark.slow
def test_sizes_that_are_not_there_are_told_in_one_line_in_little_memory_and_time():
    """One process, which makes the bombs once."""
    names = sorted(CASES)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.sizes"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        input="\n".join(names),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in told] == names, done.stderr[-2000:]
    allowed = {name: ("", "MdlError") if name.startswith(GOES_ON) else ("MdlError",) for name in names}
    assert [each for each in told if each["ended"] not in allowed[each["name"]]] == []
    assert [each for each in told if each["seconds"] > MOST_S] == []
