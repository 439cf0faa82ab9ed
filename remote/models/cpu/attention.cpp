// Attention of one width of heads, forward and backward, in float32: see attention.py.
//
// A few queries meet a few keys while both are in registers.  Each row's each head is one thread's
// from beginning to end, so results are the same bits for any number of threads.

#include "heads.h"

namespace {

constexpr int BLOCK = 128;                   // keys whose weights stay in the first cache
constexpr int THREE = 3 * WIDTH;             // queries, keys, values of a position
constexpr int64_t MATRIX = (THREE + LANES) / COLUMNS * COLUMNS * HIDDEN;  // of a head, in tiles
constexpr float NEAR = 60;                   // 2^60 and 2^-60 are far from what float32 can hold

class Forward {
    const Problem& given;
    const int64_t keys;
    Buffer key, key_columns, value, query, weight, sums;
    Buffer own, last;                        // of one head, where states are given

    // What the head's matrix makes of a row's states.
    Parts project(int64_t row, int64_t head) {
        const float* const matrix = given.matrices + head * MATRIX;
        for (int64_t at = 0; at < keys; at += ROWS) {
            const float* states = given.states + (row * keys + at) * HIDDEN;
            if (at + ROWS > keys) {
                std::copy(states, states + (keys - at) * HIDDEN, last + 0);
                states = last;
            }
            float* const to = own + at * THREE;
            for (int c = 0; c + COLUMNS <= THREE; c += COLUMNS) {
                Floats found[ROWS][2];
                multiply<HIDDEN>(states, matrix + c * HIDDEN, found);
                each([&](int i, int j) { store(to + i * THREE + c + j * LANES, found[i][j]); });
            }
            if (THREE % COLUMNS) {
                Floats found[ROWS][1];
                multiply<HIDDEN>(states, matrix + (THREE - LANES) * HIDDEN, found);
                each<1>([&](int i, int) { store(to + i * THREE + THREE - LANES, found[i][0]); });
            }
        }
        return {own, THREE, WIDTH};
    }

    float longest(const float* rows, int64_t count) const {
        float squared = 0;
        for (int64_t i = 0; i < count; i++) {
            Floats squares = {};
            for (int d = 0; d < WIDTH; d += LANES)
                squares += load(rows + i * WIDTH + d) * load(rows + i * WIDTH + d);
            squared = std::max(squared, sum(squares));
        }
        return std::sqrt(squared);
    }

    // Each query's largest score.
    void find_largest(float* largest) {
        Floats so_far[QUERIES];
        std::fill(so_far, so_far + QUERIES, all(-INFINITY));
        for (int64_t k = 0; k < keys; k += KEYS) {
            Floats scores[QUERIES][2];
            multiply<WIDTH>(query, key_columns + k * WIDTH, scores);
            each([&](int i, int j) {
                so_far[i] = so_far[i] > scores[i][j] ? so_far[i] : scores[i][j];
            });
        }
        for (int i = 0; i < QUERIES; i++) {
            largest[i] = so_far[i][0];
            for (int lane = 1; lane < LANES; lane++)
                largest[i] = std::max(largest[i], so_far[i][lane]);
        }
    }

    // What a tile of keys, or half of one, weighs.
    template <bool FAR, int VECTORS>
    void weigh(const float* tile, const float* top, float* weights) {
        Floats scores[QUERIES][VECTORS];
        multiply<WIDTH>(query, tile, scores);
        each<VECTORS>([&](int i, int j) {
            const Floats power = FAR ? floored(scores[i][j] - top[i]) : scores[i][j];
            store(weights + i * BLOCK + j * LANES, exp2(power));
        });
    }

    // Adds what a block of keys weighs, and its values so often.
    template <bool FAR>
    void mix(int64_t block, const float* top, Floats* total) {
        const int count = std::min<int64_t>(BLOCK, keys - block);
        const float* const columns = key_columns + block * WIDTH;
        int k = 0;
        for (; k + LANES < count; k += KEYS) weigh<FAR, 2>(columns + k * WIDTH, top, weight + k);
        if (k < count) weigh<FAR, 1>(columns + k * WIDTH, top, weight + k);
        const int end = padded(count, LANES);
        if (count < end)
            for (int i = 0; i < QUERIES; i++)
                std::fill(weight + i * BLOCK + count, weight + i * BLOCK + end, 0.0f);
        for (k = 0; k < count; k += LANES)
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++) total[i] += load(weight + i * BLOCK + k);
        gather(weight, BLOCK, value + block * WIDTH, count, sums);
    }

public:
    explicit Forward(const Problem& given)
        : given(given), keys(given.positions), key(keys * WIDTH),
          key_columns(padded(keys, KEYS) * WIDTH), value(keys * WIDTH), query(QUERIES * WIDTH),
          weight(QUERIES * BLOCK), sums(QUERIES * WIDTH),
          own(given.states ? padded(keys, ROWS) * THREE : 0), last(ROWS * HIDDEN) {}

    void operator()(int64_t row, int64_t head, float* out, float* log_totals) {
        const Parts parts = given.states ? project(row, head) : given.parts(row, head);
        for (int64_t k = 0; k < keys; k++) {
            given.turn(k, parts(k, 1), 1, key + k * WIDTH);
            std::copy(parts(k, 2), parts(k, 2) + WIDTH, value + k * WIDTH);
        }
        transpose<WIDTH>(key, keys, key_columns);
        const float longest_key = longest(key, keys);
        for (int64_t q = given.first[row]; q < given.first[row + 1]; q += QUERIES) {
            const int64_t count = std::min<int64_t>(QUERIES, given.first[row + 1] - q);
            for (int64_t i = 0; i < count; i++) {
                const int64_t position = given.asking[q + i] - row * keys;
                given.turn(position, parts(position, 0), given.scale() * LOG2_E, query + i * WIDTH);
            }
            // Weights are powers of scores, less the largest one where they can be far from 0.
            const bool far = longest(query, count) * longest_key > NEAR;
            float top[QUERIES] = {};
            if (far) find_largest(top);
            Floats total[QUERIES] = {};
            std::fill(sums + 0, sums + QUERIES * WIDTH, 0.0f);
            for (int64_t block = 0; block < keys; block += BLOCK)
                far ? mix<true>(block, top, total) : mix<false>(block, top, total);
            for (int64_t i = 0; i < count; i++) {
                const int64_t at = (q + i) * given.heads + head;
                const float whole = sum(total[i]), share = 1 / whole;
                for (int d = 0; d < WIDTH; d += LANES)
                    store(out + at * WIDTH + d, load(sums + i * WIDTH + d) * share);
                if (log_totals) log_totals[at] = top[i] + std::log2(whole);
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
            each([&](int i, int j) {
                const Floats power = floored(sums[i][j] - log_total[q + i]);
                store(weight + i * BLOCK + k + j * LANES, exp2(power));
            });
            multiply<WIDTH>(out_slope + q * WIDTH, value_columns + (block + k) * WIDTH, sums);
            each([&](int i, int j) {
                const int at = i * BLOCK + k + j * LANES;
                store(score_slope + at, load(weight + at) * (sums[i][j] - mean_slope[q + i]));
            });
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
        const Parts parts = given.parts(row, head);
        for (int64_t k = 0; k < keys; k++) {
            given.turn(k, parts(k, 1), 1, key + k * WIDTH);
            std::copy(parts(k, 2), parts(k, 2) + WIDTH, value + k * WIDTH);
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
            given.turn<true>(position, query_slope + i * WIDTH, given.scale(),
                             slopes + given.at(row, position, 0, head));
        }
        for (int64_t k = 0; k < keys; k++) {     // queries are LOG2_E times what they were
            given.turn<true>(k, key_slope + k * WIDTH, 1 / LOG2_E,
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

// The same, of what `matrix` [query, key, value][heads][WIDTH][HIDDEN] makes of `states`
// [rows][positions][HIDDEN], without what `learn` needs.
extern "C" void states_attend(const float* states, const float* matrix, const float* cosines,
                              const float* sines, int64_t rows, int64_t positions, int64_t heads,
                              const int64_t* asking, const int64_t* first, int64_t threads,
                              float* out) {
    Buffer tiles(heads * MATRIX), own(THREE * HIDDEN);
    for (int64_t head = 0; head < heads; head++) {
        for (int part = 0; part < 3; part++) {
            const float* const from = matrix + (part * heads + head) * WIDTH * HIDDEN;
            std::copy(from, from + WIDTH * HIDDEN, own + part * WIDTH * HIDDEN);
        }
        transpose<HIDDEN>(own, THREE, tiles + head * MATRIX);
    }
    const Problem given{nullptr, cosines, sines, rows, positions, heads, asking, first, states, tiles};
    share<Forward>(given, threads, out, static_cast<float*>(nullptr));
}

// From the gradient of `out` that of `projected`; nothing is written for queries that did not ask.
extern "C" void learn(const float* projected, const float* cosines, const float* sines,
                      int64_t rows, int64_t positions, int64_t heads, const int64_t* asking,
                      const int64_t* first, int64_t threads, const float* out,
                      const float* log_totals, const float* out_slopes, float* slopes) {
    const Problem given{projected, cosines, sines, rows, positions, heads, asking, first};
    share<Backward>(given, threads, out, log_totals, out_slopes, slopes);
}
