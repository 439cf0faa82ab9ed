// Vectors of floats, and products of small matrices that stay in registers and in the first cache.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16;
constexpr int ROWS = 8;                      // at once: with two vectors of columns, 16 registers
#else
constexpr int LANES = 8;
constexpr int ROWS = 5;
#endif
constexpr int COLUMNS = 2 * LANES;           // a tile: they lie [DEPTH][COLUMNS]
constexpr float LOG2_E = 1.44269504f;        // e^x is taken as 2^x

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

inline Floats load(const float* from) { Floats x; std::memcpy(&x, from, sizeof x); return x; }
inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }
inline Floats all(float x) { return Floats{} + x; }

inline float sum(Floats x) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += x[lane];
    return total;
}

// For `exp2`; what is smaller would slow products by being tiny.
inline Floats floored(Floats x) { return x < all(-100) ? all(-100) : x; }

// 2^x for |x| <= 100, to 3e-7.
inline Floats exp2(Floats x) {
    const float rounds = 12582912;           // 1.5 * 2^23: the sum has the integer in its last bits
    Floats n = x + rounds;
    Floats f = x - (n - rounds);             // -1/2 ... 1/2
    Floats p = all(1.3276461e-3f);
    p = p * f + 9.6755419e-3f;
    p = p * f + 5.5507135e-2f;
    p = p * f + 2.4022119e-1f;
    p = p * f + 6.9314694e-1f;
    p = p * f + 1.0000001f;
    return (Floats)((Ints)p + ((Ints)n << 23));
}

class Buffer {                               // of zeros, aligned as vectors are
    struct alignas(64) Line { float at[16]; };
    std::vector<Line> lines;

public:
    explicit Buffer(size_t floats) : lines((floats + 15) / 16) {}
    operator float*() { return lines.data()->at; }
};

inline int64_t padded(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

// act(i, j) of ROWS rows and the vectors of a tile, or its first one.  All at once: a loop over sums
// would take them out of their registers.
template <int VECTORS = 2, typename Act>
inline void each(Act act) {
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++) act(i, j);
}

// sums[i] = rows[i] . columns, of ROWS rows and a tile of columns, or its first half.
template <int DEPTH, int VECTORS>
inline void multiply(const float* rows, const float* tile, Floats (&sums)[ROWS][VECTORS]) {
    each<VECTORS>([&](int i, int j) { sums[i][j] = Floats{}; });
#pragma GCC unroll 4
    for (int d = 0; d < DEPTH; d++) {
        Floats columns[VECTORS];
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++) columns[j] = load(tile + d * COLUMNS + j * LANES);
        each<VECTORS>([&](int i, int j) { sums[i][j] += rows[i * DEPTH + d] * columns[j]; });
    }
}

// Rows as columns, in tiles; beyond the last one it is itself again.
template <int DEPTH>
void transpose(const float* rows, int64_t count, float* tiles) {
    for (int64_t k = 0; k < padded(count, COLUMNS); k++) {
        const float* const row = rows + std::min(k, count - 1) * DEPTH;
        float* const column = tiles + k / COLUMNS * COLUMNS * DEPTH + k % COLUMNS;
        for (int d = 0; d < DEPTH; d++) column[d * COLUMNS] = row[d];
    }
}

// work(0), ..., work(threads - 1), each in a thread of its own.
template <typename Work>
void in_parallel(int64_t threads, Work work) {
    std::vector<std::thread> others;
    for (int64_t thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
    work(0);
    for (std::thread& other : others) other.join();
}

}  // namespace
