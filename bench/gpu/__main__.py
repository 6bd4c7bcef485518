"""Measures models of random weights, which take as long as trained ones: `python -m bench.gpu --python PYTHON`.

`padding` is a loop that answers each batch at once, as a static-batch server does: the time with the same prompts
in order of arrival, in Beam's length buckets and as our engine plans them. `decode` is the time of a token beside
the memory-bandwidth limit. `memory` is what one sequence takes beside the formula of docs/evidence/gpu.md.
`serving` is `transformers serve`: rows per second at several numbers of requests in flight, with the limit that
the engine finds by latency, and of a whole job; and requests that a server might reject.

With `PYTHON` as the interpreter of that environment, first a tiny model on the CPU, as a test:

    python -m bench.gpu --python PYTHON
    python -m bench.gpu --python PYTHON --size 4b --device cuda --rows 2000 --batch 128 --in-flight 1 8 32 128
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from bench.gpu import decode, memory, padding, serving

PARTS = ("padding", "decode", "memory", "serving")
MAKE_MODEL = Path(__file__).with_name("make_model.py")


def main() -> None:
    """Generates the weights, and runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", required=True, type=Path, help="interpreter that has transformers[serving] and torch"
    )
    parser.add_argument(
        "--size", choices=("tiny", "1b", "4b"), default="tiny", help="of the model (default: tiny)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--weights", type=Path, help="directory of the model, made if there is none")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS, help="default: all")
    parser.add_argument("--rows", type=int, default=64, help="number of prompts (default: 64)")
    parser.add_argument("--batch", type=int, default=16, help="prompts of a static batch (default: 16)")
    parser.add_argument("--max-output-tokens", type=int, default=8, help="tokens per answer (default: 8)")
    parser.add_argument(
        "--in-flight",
        type=int,
        nargs="+",
        default=[1, 4, 16],
        metavar="N",
        help="requests in flight, and sequences decoded at once (default: 1 4 16)",
    )
    parser.add_argument("--continuous-batching", action="store_true", help="start the server with this option")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        weights = arguments.weights or Path(directory) / f"random-gemma-3-{arguments.size}"
        if not weights.exists():
            command = [arguments.python, MAKE_MODEL, weights, arguments.size, serving.TEXT]
            subprocess.run([str(part) for part in command], check=True)
        if "padding" in arguments.parts:
            padding.measure(
                arguments.python,
                weights,
                arguments.size,
                arguments.device,
                arguments.rows,
                arguments.batch,
                arguments.max_output_tokens,
            )
        if "decode" in arguments.parts:
            decode.measure(arguments.python, weights, arguments.device, arguments.in_flight)
        if "memory" in arguments.parts:
            memory.measure(arguments.python, weights, arguments.size, arguments.device)
        if "serving" in arguments.parts:
            serving.measure(
                arguments.python,
                weights,
                device=arguments.device,
                is_batching=arguments.continuous_batching,
                rows=arguments.rows,
                max_output_tokens=arguments.max_output_tokens,
                in_flight=arguments.in_flight,
            )


if __name__ == "__main__":
    main()
