// A SwiGLU, the residual sum and its norm, forward, in float32: see mlp.py.
//
// A few positions go through all of it while what lies between is in the first cache.  Each is
// computed on its own, so results are the same bits for any number of threads.

#include "vectors.h"

namespace {

static_assert(WIDTH % COLUMNS == 0 && INNER % COLUMNS == 0);

inline Floats silu(Floats x) {
    Floats power = exp2((x < all(0) ? x : -x) * LOG2_E);  // of -|x|
    return x * (x < all(0) ? power : all(1)) / (1.0f + power);
}

inline void norm(float* row, float epsilon) {
    Floats squares = {};
    for (int d = 0; d < WIDTH; d += LANES) squares += load(row + d) * load(row + d);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += squares[lane];
    const float factor = 1 / std::sqrt(sum / WIDTH + epsilon);
    for (int d = 0; d < WIDTH; d += LANES) store(row + d, load(row + d) * factor);
}

class Forward {
    const float *gate, *up, *down;           // in tiles
    const float epsilon;
    Buffer state, inner;                     // [ROWS][WIDTH], [ROWS][INNER]

    void open() {
        for (int c = 0; c < INNER; c += COLUMNS) {
            Floats gates[ROWS][2], ups[ROWS][2];
            multiply<WIDTH>(state, gate + c * WIDTH, gates);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < 2; j++)
                    store(inner + i * INNER + c + j * LANES, silu(gates[i][j]));
            multiply<WIDTH>(state, up + c * WIDTH, ups);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < 2; j++) {
                    float* const at = inner + i * INNER + c + j * LANES;
                    store(at, load(at) * ups[i][j]);
                }
        }
    }

    void close() {
        for (int c = 0; c < WIDTH; c += COLUMNS) {
            Floats sums[ROWS][2];
            multiply<INNER>(inner, down + c * INNER, sums);
            for (int i = 0; i < ROWS; i++)
                for (int j = 0; j < 2; j++) {
                    float* const at = state + i * WIDTH + c + j * LANES;
                    store(at, load(at) + sums[i][j]);
                }
        }
        for (int i = 0; i < ROWS; i++) norm(state + i * WIDTH, epsilon);
    }

public:
    Forward(const float* gate, const float* up, const float* down, float epsilon)
        : gate(gate), up(up), down(down), epsilon(epsilon), state(ROWS * WIDTH),
          inner(ROWS * INNER) {}

    void operator()(const float* x, int64_t count, float* out) {
        std::copy(x, x + count * WIDTH, state + 0);
        open();
        close();
        std::copy(state + 0, state + count * WIDTH, out);
    }
};

}  // namespace

// out = norm(x + down(silu(gate x) * up x)), both [positions][WIDTH]; gate_up [2 * INNER][WIDTH],
// down [WIDTH][INNER].
extern "C" void feed(const float* x, const float* gate_up, const float* down, float epsilon,
                     int64_t positions, int64_t threads, float* out) {
    Buffer gate_tiles(INNER * WIDTH), up_tiles(INNER * WIDTH), down_tiles(WIDTH * INNER);
    transpose<WIDTH>(gate_up, INNER, gate_tiles);
    transpose<WIDTH>(gate_up + INNER * WIDTH, INNER, up_tiles);
    transpose<INNER>(down, WIDTH, down_tiles);
    const float *const gate = gate_tiles, *const up = up_tiles, *const last = down_tiles;
    in_parallel(threads, [&](int64_t thread) {
        Forward forward(gate, up, last, epsilon);
        for (int64_t at = thread * ROWS; at < positions; at += threads * ROWS)
            forward(x + at * WIDTH, std::min<int64_t>(ROWS, positions - at), out + at * WIDTH);
    });
}
