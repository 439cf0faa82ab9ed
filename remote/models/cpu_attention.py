"""Attention without gradient on a CPU: C++ that is compiled on the spot, in a second.

For narrow heads PyTorch's own spends much of its time outside of its products: they are of matrices
16 wide, and large ones in between go through memory.  Here a few queries meet all keys while both
are in registers and in the first cache.  It adds up in another order, so results agree to rounding.

There is no form with a gradient: where a step learns, PyTorch's is used.
"""

import ctypes
import logging
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

log = logging.getLogger(__name__)
Mix = Callable[[Tensor, Tensor, Tensor, list[int]], Tensor]  # see `CPUAttention.__call__`
COMPILERS = ("g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
COMPILE_LIMIT_S = 60
LANES = 16  # a head's width must be a multiple
ROUNDING = 1e-5

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
constexpr int WIDTH = HEAD_WIDTH;            // of a head
constexpr int QUERIES = 6;                   // at once: with two vectors of keys, 12 registers
constexpr int KEYS = 2 * LANES;
constexpr int PARTS = WIDTH / LANES;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

inline Floats load(const float* from) { Floats x; std::memcpy(&x, from, sizeof x); return x; }
inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }
inline Floats all(float x) { return Floats{} + x; }

// 2^x for x <= 0, to 2e-7; below 2^-126 it is that.
inline Floats exp2(Floats x) {
    x = x < all(-126) ? all(-126) : x;
    const float rounds = 12582912;           // 1.5 * 2^23: the sum has the integer in its last bits
    Floats n = x + rounds;
    Floats f = x - (n - rounds);             // -1/2 ... 1/2
    Floats p = all(1.5353362e-4f);
    p = p * f + 1.3398874e-3f;
    p = p * f + 9.6184374e-3f;
    p = p * f + 5.5503325e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    p = p * f + 1.0f;
    return (Floats)((Ints)p + ((Ints)n << 23));
}

struct Row {                                 // what is asked of one row's one head
    int keys, padded;                        // the latter a multiple of KEYS
    std::vector<float> key, value;           // [WIDTH][padded], [padded][WIDTH]
    std::vector<float> query, weight;        // [QUERIES][WIDTH], [QUERIES][padded]

    explicit Row(int keys)
        : keys(keys), padded((keys + KEYS - 1) / KEYS * KEYS), key(WIDTH * padded),
          value(WIDTH * padded), query(QUERIES * WIDTH), weight(QUERIES * padded) {}

    void score(Floats* largest) {
        const float* const key = this->key.data();
        const float* const query = this->query.data();
        float* const weight = this->weight.data();
        for (int i = 0; i < QUERIES; i++) largest[i] = all(-INFINITY);
        for (int k = 0; k < padded; k += KEYS) {
            Floats sums[QUERIES][2] = {};
            for (int d = 0; d < WIDTH; d++) {
                const float* at = key + d * padded + k;
                Floats first = load(at), second = load(at + LANES);
#pragma GCC unroll 6
                for (int i = 0; i < QUERIES; i++) {
                    sums[i][0] += query[i * WIDTH + d] * first;
                    sums[i][1] += query[i * WIDTH + d] * second;
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < QUERIES; i++) {
                for (int j = 0; j < 2; j++) {
                    largest[i] = largest[i] > sums[i][j] ? largest[i] : sums[i][j];
                    store(weight + i * padded + k + j * LANES, sums[i][j]);
                }
            }
        }
    }

    void answer(const Floats* largest, float* out, int64_t stride, int count) {
        float* const weight = this->weight.data();
        const float* const value = this->value.data();
        float share[QUERIES];
        for (int i = 0; i < QUERIES; i++) {
            float top = -INFINITY;
            for (int lane = 0; lane < LANES; lane++) top = std::max(top, largest[i][lane]);
            Floats total = {};
            float* const own = weight + i * padded;
            std::fill(own + keys, own + padded, -INFINITY);
            for (int k = 0; k < padded; k += LANES) {
                Floats raised = exp2(load(own + k) - top);
                total += raised;
                store(own + k, raised);
            }
            float sum = 0;
            for (int lane = 0; lane < LANES; lane++) sum += total[lane];
            share[i] = 1 / sum;
        }
        Floats mixed[QUERIES][PARTS] = {};
        for (int k = 0; k < keys; k++)
            for (int part = 0; part < PARTS; part++) {
                Floats v = load(value + k * WIDTH + part * LANES);
#pragma GCC unroll 6
                for (int i = 0; i < QUERIES; i++) mixed[i][part] += weight[i * padded + k] * v;
            }
        for (int i = 0; i < count; i++)
            for (int part = 0; part < PARTS; part++)
                store(out + i * stride + part * LANES, mixed[i][part] * share[i]);
    }
};

}  // namespace

// Strides are of positions, in floats; a row's positions, and a position's heads, are consecutive.
extern "C" void attend(const float* query, int64_t query_stride, const int64_t* first_query,
                       const float* key, int64_t key_stride, const float* value,
                       int64_t value_stride, float* out, int64_t rows, int64_t positions,
                       int64_t heads, int64_t threads) {
    const float scale = 1.44269504f / std::sqrt(float(WIDTH));   // e^x as 2^x
    auto work = [&](int64_t thread) {
        Row row(positions);
        for (int64_t job = thread; job < rows * heads; job += threads) {
            const int64_t b = job / heads, head = job % heads;
            for (int64_t k = 0; k < row.padded; k++) {       // beyond the last key: itself again
                const int64_t at = b * positions + std::min(k, positions - 1);
                for (int d = 0; d < WIDTH; d++) {
                    const int64_t column = head * WIDTH + d;
                    row.key[d * row.padded + k] = key[at * key_stride + column];
                    row.value[k * WIDTH + d] = value[at * value_stride + column];
                }
            }
            for (int64_t q = first_query[b]; q < first_query[b + 1]; q += QUERIES) {
                const int count = std::min<int64_t>(QUERIES, first_query[b + 1] - q);
                for (int i = 0; i < count; i++)
                    for (int d = 0; d < WIDTH; d++)
                        row.query[i * WIDTH + d] =
                            query[(q + i) * query_stride + head * WIDTH + d] * scale;
                Floats largest[QUERIES];
                row.score(largest);
                row.answer(largest, out + (q * heads + head) * WIDTH, heads * WIDTH, count);
            }
        }
    };
    std::vector<std::thread> others;
    for (int64_t thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
    work(0);
    for (std::thread& other : others) other.join();
}
"""


class CPUAttention:
    def __init__(self, width: int, compiler: str) -> None:
        """Raises OSError or subprocess.SubprocessError where it cannot be made."""
        self.width = width
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "attention.so")
            subprocess.run(
                [compiler, *FLAGS, f"-DHEAD_WIDTH={width}", "-x", "c++", "-", "-o", str(made)],
                input=SOURCE,
                text=True,
                check=True,
                capture_output=True,
                timeout=COMPILE_LIMIT_S,
            )
            self._attend = ctypes.CDLL(str(made)).attend  # stays loaded when the file is gone
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._attend.argtypes = [
            *(pointer, number, pointer),
            *(pointer, number, pointer, number, pointer),
            *(number, number, number, number),
        ]
        self._attend.restype = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, counts: list[int]) -> Tensor:
        """(T, heads * width), float32 like all: what T queries find.

        query (T, heads, width), key and value (B, S, heads, width); the first counts[0] queries
        ask row 0, the next counts[1] row 1, and so on.
        """
        rows, positions, heads, width = key.shape
        query, key, value = _in_lines(query), _in_lines(key), _in_lines(value)
        firsts = torch.tensor([0, *counts]).cumsum(0)
        out = torch.empty(len(query), heads * width)
        self._attend(
            *(query.data_ptr(), query.stride(-3), firsts.data_ptr()),
            *(key.data_ptr(), key.stride(-3), value.data_ptr(), value.stride(-3), out.data_ptr()),
            *(rows, positions, heads, min(torch.get_num_threads(), rows * heads)),
        )
        return out


def make(width: int, environ: Mapping[str, str], which: Callable[[str], str | None]) -> Mix | None:
    """None, and a word on why in the log, where PyTorch's is to be used."""
    if "DISABLE_COMPILE" in environ or width % LANES:
        return None
    compiler = next(filter(which, filter(None, (environ.get("CXX"), *COMPILERS))), None)
    if compiler is None:
        log.info("attention: PyTorch's; a C++ compiler would make it faster: apt-get install g++")
        return None
    try:
        found = CPUAttention(width, compiler)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("attention: PyTorch's, for %s did not make ours: %s", compiler, error)
        return None
    if (difference := _difference(found, width)) > ROUNDING:
        log.warning("attention: PyTorch's, for ours is off by %.1e here", difference)
        return None
    return found


def _difference(mix: Mix, width: int) -> float:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 37, 2, width, generator=random) for _ in range(3))
    expected = scaled_dot_product_attention(*(x.transpose(1, 2) for x in (query, key, value)))
    found = mix(query.flatten(0, 1), key, value, [37, 37])
    return float((found - expected.transpose(1, 2).reshape(found.shape)).abs().max())


def _in_lines(x: Tensor) -> Tensor:
    """As it is where heads follow each other in a position, and positions at one distance."""
    *rows, heads, width = x.shape
    strides = x.stride()
    lies = strides[-2:] == (width, 1) or (heads == 1 and strides[-1] == 1)
    if len(rows) == 2:
        lies = lies and strides[0] == rows[1] * strides[1]
    return x if lies else x.contiguous()
