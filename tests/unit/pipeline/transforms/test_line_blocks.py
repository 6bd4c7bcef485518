from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.transforms.line_blocks import BLOCK_BYTES, ToLineBlocks

partitions = st.integers(min_value=0, max_value=3)
lengths = st.sampled_from([1, 100, BLOCK_BYTES // 2, BLOCK_BYTES, 3 * BLOCK_BYTES])


@given(st.lists(st.tuples(partitions, lengths), max_size=20))
def test_each_line_is_in_one_block_of_its_partition(drawn: list[tuple[int, int]]) -> None:
    lines = [(partition, b"%d%s\n" % (number, b"x" * length)) for number, (partition, length) in enumerate(drawn)]
    step = ToLineBlocks(lambda line: line)
    step.start_bundle()
    full = [block for line in lines for block in step.process(line)]
    rest = [windowed.value for windowed in step.finish_bundle()]
    assert all(len(block) >= BLOCK_BYTES for _, block in full)
    assert all(len(block) < BLOCK_BYTES for _, block in rest)
    found = [(partition, line) for partition, block in [*full, *rest] for line in block.splitlines(keepends=True)]
    for partition in range(4):
        assert [line for of, line in found if of == partition] == [line for of, line in lines if of == partition]
