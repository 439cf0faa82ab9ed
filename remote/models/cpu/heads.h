// Attention of heads of one width: what is given, and sums over its queries and keys.

#pragma once

#include "vectors.h"

namespace {

constexpr int QUERIES = ROWS;                // at once
constexpr int KEYS = COLUMNS;                // a tile: they lie [WIDTH][KEYS]
constexpr int WIDTH = HEAD_WIDTH;            // of a head
constexpr int PARTS = WIDTH / LANES;
constexpr int PAIR = PARTS % 2 ? 1 : 2;      // parts at once

// sums[i] += sum over k of weight[i][k] rows[k], of QUERIES sums.
inline void gather(const float* weight, int stride, const float* rows, int count, float* sums) {
    for (int part = 0; part < PARTS; part += PAIR) {
        Floats mixed[QUERIES][PAIR] = {};
        for (int k = 0; k < count; k++)
#pragma GCC unroll 2
            for (int j = 0; j < PAIR; j++) {
                Floats row = load(rows + k * WIDTH + (part + j) * LANES);
#pragma GCC unroll 8
                for (int i = 0; i < QUERIES; i++) mixed[i][j] += weight[i * stride + k] * row;
            }
#pragma GCC unroll 8
        for (int i = 0; i < QUERIES; i++)
#pragma GCC unroll 2
            for (int j = 0; j < PAIR; j++) {
                float* const at = sums + i * WIDTH + (part + j) * LANES;
                store(at, load(at) + mixed[i][j]);
            }
    }
}

// sums[k] += sum over i of weight[i][k] rows[i], of QUERIES rows; `count` is a multiple of 4.
inline void spread(const float* weight, int stride, const float* rows, int count, float* sums) {
    for (int part = 0; part < PARTS; part++) {
        Floats row[QUERIES];
#pragma GCC unroll 8
        for (int i = 0; i < QUERIES; i++) row[i] = load(rows + i * WIDTH + part * LANES);
        for (int k = 0; k < count; k += 4) {
            float* const at = sums + k * WIDTH + part * LANES;
            Floats sum[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sum[j] = load(at + j * WIDTH);
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) sum[j] += weight[i * stride + k + j] * row[i];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) store(at + j * WIDTH, sum[j]);
        }
    }
}

// Queries, keys and values of one head: `part` 0, 1 and 2 of each position.
struct Parts {
    const float* from;
    int64_t position_stride, part_stride;

    const float* operator()(int64_t position, int64_t part) const {
        return from + position * position_stride + part * part_stride;
    }
};

// What is given: see `attend` and `learn`.
struct Problem {
    const float *projected, *cosines, *sines;
    int64_t rows, positions, heads;
    const int64_t *asking, *first;
    const float *states = nullptr, *matrices = nullptr;  // see `states_attend`

    // What is projected of a position is its queries, its keys, its values; heads of each.
    int64_t at(int64_t row, int64_t position, int64_t part, int64_t head) const {
        return (((row * positions + position) * 3 + part) * heads + head) * WIDTH;
    }
    Parts parts(int64_t row, int64_t head) const {
        return {projected + at(row, 0, 0, head), 3 * heads * WIDTH, heads * WIDTH};
    }

    // Halves turned against each other by the angle of their position; `factor` times.  BACK: the
    // gradient of what was turned to that of what it was before.
    template <bool BACK = false>
    void turn(int64_t position, const float* __restrict__ from, float factor,
              float* __restrict__ to) const {
        if (!cosines) {
            for (int d = 0; d < WIDTH; d++) to[d] = factor * from[d];
            return;
        }
        const float *const c = cosines + position * WIDTH, *const s = sines + position * WIDTH;
        for (int d = 0; d < WIDTH / 2; d++) {
            const int e = d + WIDTH / 2;
            const float x = from[d], y = from[e];
            to[d] = factor * (x * c[d] + y * s[BACK ? e : d]);
            to[e] = factor * (y * c[e] + x * s[BACK ? d : e]);
        }
    }

    float scale() const { return 1 / std::sqrt(float(WIDTH)); }
};

}  // namespace
