// What a block does after its attention's heads, forward, in float32: see mlp.py.
//
// A few positions go through all of it while what lies between is in the first cache.  Each is
// computed on its own, so results are the same bits for any number of threads.

#include "vectors.h"

namespace {

static_assert(WIDTH % COLUMNS == 0 && INNER % COLUMNS == 0);

inline Floats silu(Floats x) {
    const Floats power = floored(x * -LOG2_E);
    return x / (1.0f + exp2(power > all(100) ? all(100) : power));
}

inline void norm(float* row, float epsilon) {
    Floats squares = {};
    for (int d = 0; d < WIDTH; d += LANES) squares += load(row + d) * load(row + d);
    const float factor = 1 / std::sqrt(sum(squares) / WIDTH + epsilon);
    for (int d = 0; d < WIDTH; d += LANES) store(row + d, load(row + d) * factor);
}

struct Weights {                             // in tiles
    const float *projection, *gate, *up, *down;
    float epsilon;
};

class Forward {
    const Weights& given;
    Buffer heads, state, inner;              // [ROWS][WIDTH] twice, [ROWS][INNER]

    // state = norm(state + matrix rows).
    template <int DEPTH>
    void add(const float* matrix, const float* rows) {
        for (int c = 0; c < WIDTH; c += COLUMNS) {
            Floats sums[ROWS][2];
            multiply<DEPTH>(rows, matrix + c * DEPTH, sums);
            each([&](int i, int j) {
                float* const at = state + i * WIDTH + c + j * LANES;
                store(at, load(at) + sums[i][j]);
            });
        }
        for (int i = 0; i < ROWS; i++) norm(state + i * WIDTH, given.epsilon);
    }

    // inner = silu(gate state) * up state.
    void open() {
        for (int c = 0; c < INNER; c += COLUMNS) {
            Floats gates[ROWS][2], ups[ROWS][2];
            multiply<WIDTH>(state, given.gate + c * WIDTH, gates);
            each([&](int i, int j) {
                store(inner + i * INNER + c + j * LANES, silu(gates[i][j]));
            });
            multiply<WIDTH>(state, given.up + c * WIDTH, ups);
            each([&](int i, int j) {
                float* const at = inner + i * INNER + c + j * LANES;
                store(at, load(at) * ups[i][j]);
            });
        }
    }

public:
    explicit Forward(const Weights& given)
        : given(given), heads(ROWS * WIDTH), state(ROWS * WIDTH), inner(ROWS * INNER) {}

    void operator()(const float* x, const float* mixed, int64_t count, float* out) {
        std::copy(x, x + count * WIDTH, state + 0);
        if (mixed) {
            std::copy(mixed, mixed + count * WIDTH, heads + 0);
            add<WIDTH>(given.projection, heads);
        }
        open();
        add<INNER>(given.down, inner);
        std::copy(state + 0, state + count * WIDTH, out);
    }
};

}  // namespace

// out = norm(y + down(silu(gate y) * up y)), where y is norm(x + projection mixed), or x if `mixed`
// is null: x, mixed and out [positions][WIDTH]; projection [WIDTH][WIDTH], gate_up
// [2 * INNER][WIDTH], down [WIDTH][INNER].
extern "C" void feed(const float* x, const float* mixed, const float* projection,
                     const float* gate_up, const float* down, float epsilon, int64_t positions,
                     int64_t threads, float* out) {
    Buffer projection_tiles(WIDTH * WIDTH), down_tiles(WIDTH * INNER);
    Buffer gate_tiles(INNER * WIDTH), up_tiles(INNER * WIDTH);
    if (mixed) transpose<WIDTH>(projection, WIDTH, projection_tiles);
    transpose<WIDTH>(gate_up, INNER, gate_tiles);
    transpose<WIDTH>(gate_up + INNER * WIDTH, INNER, up_tiles);
    transpose<INNER>(down, WIDTH, down_tiles);
    const Weights given{projection_tiles, gate_tiles, up_tiles, down_tiles, epsilon};
    in_parallel(threads, [&](int64_t thread) {
        Forward forward(given);
        for (int64_t at = thread * ROWS; at < positions; at += threads * ROWS) {
            const int64_t count = std::min<int64_t>(ROWS, positions - at);
            forward(x + at * WIDTH, mixed ? mixed + at * WIDTH : nullptr, count, out + at * WIDTH);
        }
    });
}
