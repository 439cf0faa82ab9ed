// Attention of one width of heads, forward and backward, in float32: see attention.py.
//
// A few queries meet a few keys while both are in registers.  Each row's each head is one thread's
// from beginning to end, so results are the same bits for any number of threads.

#include "vectors.h"

namespace {

constexpr int QUERIES = ROWS;                // at once
constexpr int KEYS = COLUMNS;                // a tile: they lie [WIDTH][KEYS]
constexpr int WIDTH = HEAD_WIDTH;            // of a head
constexpr int BLOCK = 64;                    // keys whose gradients stay in the first cache
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
        for (int i = 0; i < QUERIES; i++)
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

// What is given: see `attend` and `learn`.
struct Problem {
    const float *projected, *cosines, *sines;
    int64_t rows, positions, heads;
    const int64_t *asking, *first;

    // What is projected of a position is its queries, its keys, its values; heads of each.
    int64_t at(int64_t row, int64_t position, int64_t part, int64_t head) const {
        return (((row * positions + position) * 3 + part) * heads + head) * WIDTH;
    }

    // Halves turned against each other by the angle of their position; `factor` times.
    void turn(int64_t position, const float* __restrict__ from, float factor, float* __restrict__ to) const {
        if (!cosines) {
            for (int d = 0; d < WIDTH; d++) to[d] = factor * from[d];
            return;
        }
        const float *const c = cosines + position * WIDTH, *const s = sines + position * WIDTH;
        for (int d = 0; d < WIDTH / 2; d++) {
            const int e = d + WIDTH / 2;
            const float x = from[d], y = from[e];
            to[d] = factor * (x * c[d] + y * s[d]);
            to[e] = factor * (y * c[e] + x * s[e]);
        }
    }

    // The gradient of what was turned to that of what it was before.
    void turn_back(int64_t position, const float* __restrict__ from, float factor, float* __restrict__ to) const {
        if (!cosines) {
            for (int d = 0; d < WIDTH; d++) to[d] = factor * from[d];
            return;
        }
        const float *const c = cosines + position * WIDTH, *const s = sines + position * WIDTH;
        for (int d = 0; d < WIDTH / 2; d++) {
            const int e = d + WIDTH / 2;
            const float x = from[d], y = from[e];
            to[d] = factor * (x * c[d] + y * s[e]);
            to[e] = factor * (y * c[e] + x * s[d]);
        }
    }

    float scale() const { return 1 / std::sqrt(float(WIDTH)); }
};

class Forward {
    const Problem& given;
    const int64_t keys, width;               // of a row of weights
    Buffer key, key_columns, value, query, weight, sums;

    void score(Floats* largest) {
        for (int i = 0; i < QUERIES; i++) largest[i] = all(-INFINITY);
        for (int64_t k = 0; k < width; k += KEYS) {
            Floats scores[QUERIES][2];
            multiply<WIDTH>(query, key_columns + k * WIDTH, scores);
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++)
                for (int j = 0; j < 2; j++) {
                    largest[i] = largest[i] > scores[i][j] ? largest[i] : scores[i][j];
                    store(weight + i * width + k + j * LANES, scores[i][j]);
                }
        }
    }

    // Scores become weights, but for a factor; theirs is returned.
    float raise(float* scores, Floats largest, float* log_total) {
        float top = -INFINITY, sum = 0;
        for (int lane = 0; lane < LANES; lane++) top = std::max(top, largest[lane]);
        std::fill(scores + keys, scores + width, -INFINITY);
        Floats total = {};
        for (int64_t k = 0; k < width; k += LANES) {
            Floats raised = exp2(load(scores + k) - top);
            total += raised;
            store(scores + k, raised);
        }
        for (int lane = 0; lane < LANES; lane++) sum += total[lane];
        *log_total = top + std::log2(sum);
        return 1 / sum;
    }

public:
    explicit Forward(const Problem& given)
        : given(given), keys(given.positions), width(padded(keys, KEYS)), key(keys * WIDTH),
          key_columns(width * WIDTH), value(keys * WIDTH), query(QUERIES * WIDTH),
          weight(QUERIES * width), sums(QUERIES * WIDTH) {}

    void operator()(int64_t row, int64_t head, float* out, float* log_totals) {
        for (int64_t k = 0; k < keys; k++) {
            given.turn(k, given.projected + given.at(row, k, 1, head), 1, key + k * WIDTH);
            const float* const from = given.projected + given.at(row, k, 2, head);
            std::copy(from, from + WIDTH, value + k * WIDTH);
        }
        transpose<WIDTH>(key, keys, key_columns);
        for (int64_t q = given.first[row]; q < given.first[row + 1]; q += QUERIES) {
            const int64_t count = std::min<int64_t>(QUERIES, given.first[row + 1] - q);
            for (int64_t i = 0; i < count; i++) {
                const int64_t position = given.asking[q + i] - row * keys;
                const float* const from = given.projected + given.at(row, position, 0, head);
                given.turn(position, from, given.scale() * LOG2_E, query + i * WIDTH);
            }
            Floats largest[QUERIES];
            float share[QUERIES], log_total[QUERIES];
            score(largest);
            for (int i = 0; i < QUERIES; i++)
                share[i] = raise(weight + i * width, largest[i], log_total + i);
            std::fill(sums + 0, sums + QUERIES * WIDTH, 0.0f);
            gather(weight, width, value, keys, sums);
            for (int64_t i = 0; i < count; i++) {
                const int64_t at = (q + i) * given.heads + head;
                for (int d = 0; d < WIDTH; d++) out[at * WIDTH + d] = sums[i * WIDTH + d] * share[i];
                log_totals[at] = log_total[i];
            }
        }
    }
};

class Backward {
    const Problem& given;
    const int64_t keys, width, most;         // the last: of queries
    Buffer key, key_columns, value, value_columns, key_slope, value_slope;
    Buffer query, query_slope, out_slope, log_total, mean_slope;
    Buffer weight, score_slope;

    void ask(int64_t row, int64_t head, const float* out, const float* log_totals,
             const float* out_slopes) {
        const int64_t begin = given.first[row], count = given.first[row + 1] - begin;
        for (int64_t i = 0; i < count; i++) {
            const int64_t position = given.asking[begin + i] - row * keys;
            const float* const from = given.projected + given.at(row, position, 0, head);
            given.turn(position, from, given.scale() * LOG2_E, query + i * WIDTH);
            const int64_t at = (begin + i) * given.heads + head;
            log_total[i] = log_totals[at];
            float mean = 0;
            for (int d = 0; d < WIDTH; d++) {
                out_slope[i * WIDTH + d] = out_slopes[at * WIDTH + d];
                mean += out_slopes[at * WIDTH + d] * out[at * WIDTH + d];
            }
            mean_slope[i] = mean;
        }
        // Beyond the last query: one that nothing follows from.
        const int64_t end = padded(count, QUERIES);
        for (Buffer* buffer : {&query, &out_slope})
            std::fill(*buffer + count * WIDTH, *buffer + end * WIDTH, 0.0f);
        for (Buffer* buffer : {&log_total, &mean_slope})
            std::fill(*buffer + count, *buffer + end, 0.0f);
        std::fill(query_slope + 0, query_slope + end * WIDTH, 0.0f);
    }

    void meet(int64_t q, int64_t block) {
        const int count = std::min<int64_t>(BLOCK, width - block);
        for (int k = 0; k < count; k += KEYS) {
            Floats sums[QUERIES][2];
            multiply<WIDTH>(query + q * WIDTH, key_columns + (block + k) * WIDTH, sums);
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++)
                for (int j = 0; j < 2; j++)
                    store(weight + i * BLOCK + k + j * LANES, exp2(sums[i][j] - log_total[q + i]));
            multiply<WIDTH>(out_slope + q * WIDTH, value_columns + (block + k) * WIDTH, sums);
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++)
                for (int j = 0; j < 2; j++) {
                    const int at = i * BLOCK + k + j * LANES;
                    store(score_slope + at, load(weight + at) * (sums[i][j] - mean_slope[q + i]));
                }
        }
        const int real = std::min<int64_t>(count, keys - block);
        gather(score_slope, BLOCK, key + block * WIDTH, real, query_slope + q * WIDTH);
        spread(weight, BLOCK, out_slope + q * WIDTH, count, value_slope + block * WIDTH);
        spread(score_slope, BLOCK, query + q * WIDTH, count, key_slope + block * WIDTH);
    }

public:
    explicit Backward(const Problem& given)
        : given(given), keys(given.positions), width(padded(keys, KEYS)),
          most(padded(keys, QUERIES)), key(keys * WIDTH), key_columns(width * WIDTH),
          value(keys * WIDTH), value_columns(width * WIDTH), key_slope(width * WIDTH),
          value_slope(width * WIDTH), query(most * WIDTH), query_slope(most * WIDTH),
          out_slope(most * WIDTH), log_total(most), mean_slope(most), weight(QUERIES * BLOCK),
          score_slope(QUERIES * BLOCK) {}

    void operator()(int64_t row, int64_t head, const float* out, const float* log_totals,
                    const float* out_slopes, float* slopes) {
        for (int64_t k = 0; k < keys; k++) {
            given.turn(k, given.projected + given.at(row, k, 1, head), 1, key + k * WIDTH);
            const float* const from = given.projected + given.at(row, k, 2, head);
            std::copy(from, from + WIDTH, value + k * WIDTH);
        }
        transpose<WIDTH>(key, keys, key_columns);
        transpose<WIDTH>(value, keys, value_columns);
        ask(row, head, out, log_totals, out_slopes);
        for (Buffer* buffer : {&key_slope, &value_slope})
            std::fill(*buffer + 0, *buffer + width * WIDTH, 0.0f);
        const int64_t begin = given.first[row], count = given.first[row + 1] - begin;
        for (int64_t block = 0; block < width; block += BLOCK)
            for (int64_t q = 0; q < count; q += QUERIES) meet(q, block);
        for (int64_t i = 0; i < count; i++) {
            const int64_t position = given.asking[begin + i] - row * keys;
            given.turn_back(position, query_slope + i * WIDTH, given.scale(),
                            slopes + given.at(row, position, 0, head));
        }
        for (int64_t k = 0; k < keys; k++) {     // queries are LOG2_E times what they were
            given.turn_back(k, key_slope + k * WIDTH, 1 / LOG2_E,
                            slopes + given.at(row, k, 1, head));
            const float* const from = value_slope + k * WIDTH;
            std::copy(from, from + WIDTH, slopes + given.at(row, k, 2, head));
        }
    }
};

// Every row's every head once; each thread has a worker of its own.
template <typename Worker, typename... Rest>
void share(const Problem& given, int64_t threads, Rest... rest) {
    in_parallel(threads, [&](int64_t thread) {
        Worker worker(given);
        for (int64_t job = thread; job < given.rows * given.heads; job += threads)
            worker(job / given.heads, job % given.heads, rest...);
    });
}

}  // namespace

// out[q], of all heads, and the logarithm to base 2 of what each head's weights were divided by.
//
// projected [rows][positions][query, key, value][heads][WIDTH]; cosines and sines
// [positions][WIDTH], or neither.  asking[first[r]] ... asking[first[r + 1] - 1] are the positions
// of row r that ask, in ascending order; they are counted on over rows.
extern "C" void attend(const float* projected, const float* cosines, const float* sines,
                       int64_t rows, int64_t positions, int64_t heads, const int64_t* asking,
                       const int64_t* first, int64_t threads, float* out, float* log_totals) {
    const Problem given{projected, cosines, sines, rows, positions, heads, asking, first};
    share<Forward>(given, threads, out, log_totals);
}

// From the gradient of `out` that of `projected`; nothing is written for queries that did not ask.
extern "C" void learn(const float* projected, const float* cosines, const float* sines,
                      int64_t rows, int64_t positions, int64_t heads, const int64_t* asking,
                      const int64_t* first, int64_t threads, const float* out,
                      const float* log_totals, const float* out_slopes, float* slopes) {
    const Problem given{projected, cosines, sines, rows, positions, heads, asking, first};
    share<Backward>(given, threads, out, log_totals, out_slopes, slopes);
}
