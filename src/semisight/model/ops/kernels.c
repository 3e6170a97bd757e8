/* What placing.py, pooling.py and curvature.py do to each of the P values of every block, in one pass over memory.

   Compiled on the user's machine where there is a C compiler (kernels.py); without one torch does the same in some thirty
   passes, and tests hold the two together. Single precision. Arrays are [P, n], blocks last, as in pooling.py; a call
   works on the blocks start <= i < stop, a tile of them at a time, so that what is in use stays in the first cache.
   V is 16 numbers, whatever the machine's own vectors hold. */

#include <stdint.h>
#include <string.h>

#define LANES 16
#define CHUNKS 8
#define TILE (LANES * CHUNKS)
#define MOST 25 /* places: pools of up to 5 x 5 */
#define INLINE static inline __attribute__((always_inline))
#define EACH(c) for (int c = 0; c < CHUNKS; c++)

typedef float V __attribute__((vector_size(4 * LANES)));
typedef int32_t M __attribute__((vector_size(4 * LANES)));
typedef V Tile[CHUNKS];

INLINE V only(M mask, V x) { return (V)(mask & (M)x); } /* zero elsewhere */

/* x where it is not a number, so that nothing which went wrong looks right. */
INLINE V larger(V x, V y) {
    M mask = y > x;
    return (V)((mask & (M)y) | (~mask & (M)x));
}

/* exp(x) for x <= 0 to a few units in the last place: 2^n times a polynomial of the rest (Cephes). */
INLINE V exp_(V x) {
    x = larger(x, (V){} - 87.0f);
    M n = __builtin_convertvector(x * 1.44269504f - 0.5f, M);
    V whole = __builtin_convertvector(n, V);
    V r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * (V)((n + 127) << 23);
}

/* log(x) for x >= 1, in the same way. */
INLINE V log_(V x) {
    M n = ((M)x >> 23) - 127;
    V r = (V)(((M)x & 0x7fffff) | 0x3f800000); /* between 1 and 2 */
    M upper = r > 1.41421356f;
    r = r - only(upper, r * 0.5f) - 1.0f;
    V whole = __builtin_convertvector(n - upper, V); /* true is -1 */
    V p = r * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    return p * r * r * r - whole * 2.12194440e-4f - r * r * 0.5f + r + whole * 0.693359375f;
}

INLINE V tanh_(V x) {
    M sign = (M)x & INT32_MIN;
    V t = exp_((V)((M)x | INT32_MIN) * 2.0f); /* of -2 |x| */
    return (V)((M)((1.0f - t) / (1.0f + t)) | sign);
}

/* Rows of a tile from and to arrays [P, n]; beyond the m blocks there are, zeros. */
INLINE void load(V *tile, const float *from, int m) {
    if (m < TILE) memset(tile, 0, sizeof(Tile));
    memcpy(tile, from, m * sizeof(float));
}

INLINE void store(float *to, const V *tile, int m) { memcpy(to, tile, m * sizeof(float)); }

/* out[a] = bias[a] + sum_b weight[a * down + b * along] in[b], for R rows at a time: their sums stay in registers. */
INLINE void some_rows(int R, int P, int a, const float *weight, int down, int along, const float *bias, Tile *in,
                      Tile *out) {
    EACH(c) {
        V sum[4];
        for (int r = 0; r < R; r++) sum[r] = (V){} + (bias ? bias[a + r] : 0.0f);
        for (int b = 0; b < P; b++)
            for (int r = 0; r < R; r++) sum[r] += weight[(a + r) * down + b * along] * in[b][c];
        for (int r = 0; r < R; r++) out[a + r][c] = sum[r];
    }
}

INLINE void multiply(int P, const float *weight, int down, int along, const float *bias, Tile *in, Tile *out) {
    int a = 0;
    for (; a + 4 <= P; a += 4) some_rows(4, P, a, weight, down, along, bias, in, out);
    for (; a < P; a++) some_rows(1, P, a, weight, down, along, bias, in, out);
}

/* total[a, b] += in_a[a] in_b[b], lane by lane; `total` [P, P]. */
INLINE void some_products(int R, int b, V *total, const V *in_a, Tile *in_b) {
    V sum[4];
    for (int r = 0; r < R; r++) sum[r] = total[b + r];
    EACH(c) for (int r = 0; r < R; r++) sum[r] += in_a[c] * in_b[b + r][c];
    for (int r = 0; r < R; r++) total[b + r] = sum[r];
}

INLINE void outer_products(int P, V total[][MOST], V *of_ones, Tile *in_a, Tile *in_b) {
    for (int a = 0; a < P; a++) {
        int b = 0;
        for (; b + 4 <= P; b += 4) some_products(4, b, total[a], in_a[a], in_b);
        for (; b < P; b++) some_products(1, b, total[a], in_a[a], in_b);
        EACH(c) of_ones[a] += in_a[a][c];
    }
}

INLINE void write_sums(int P, V total[][MOST], V *of_ones, double *to, double *to_ones) {
    for (int a = 0; a < P; a++) {
        for (int b = 0; b < P; b++) {
            to[a * P + b] = 0;
            for (int l = 0; l < LANES; l++) to[a * P + b] += total[a][b][l];
        }
        to_ones[a] = 0;
        for (int l = 0; l < LANES; l++) to_ones[a] += of_ones[a][l];
    }
}

/* The pooling MLP's weights: eta = outer tanh(inner block + inner_bias) + outer_bias. */
typedef struct {
    const float *inner, *inner_bias, *outer, *outer_bias;
} Weights;

INLINE void logits(int P, Weights w, Tile *x, Tile *hidden, Tile *eta) {
    multiply(P, w.inner, P, 1, w.inner_bias, x, hidden);
    for (int a = 0; a < P; a++) EACH(c) hidden[a][c] = tanh_(hidden[a][c]);
    multiply(P, w.outer, P, 1, w.outer_bias, hidden, eta);
}

/* Takes from each block's logits the largest, which is handed back. */
INLINE void centre(int P, Tile *eta, V *top) {
    EACH(c) {
        V most = eta[0][c];
        for (int a = 1; a < P; a++) most = larger(eta[a][c], most);
        for (int a = 0; a < P; a++) eta[a][c] -= most;
        top[c] = most;
    }
}

/* Per block: the drawn place, the pooled value, sum_a q_a log q_a, log sum_a exp(eta_a), and log q(z) unless it is 0. */
INLINE void choose_(int P, long n, long start, long stop, const float *blocks, Weights w, const float *uniform,
                    int expected, float *index, float *pooled, float *entropy, float *log_total, float *log_q) {
    Tile x[MOST], hidden[MOST], eta[MOST], u, at, value, mean, drawn, sum, top;
    for (long i = start; i < stop; i += TILE) {
        int m = stop - i < TILE ? (int)(stop - i) : TILE;
        for (int a = 0; a < P; a++) load(x[a], blocks + a * n + i, m);
        load(u, uniform + i, m);
        logits(P, w, x, hidden, eta);
        centre(P, eta, top);
        EACH(c) {
            V reached = {}, of_eta = {}, of_x = {}, count = {}, eta_there = {}, x_there = {}, one = (V){} + 1.0f;
            V e[MOST];
            for (int a = 0; a < P; a++) {
                e[a] = exp_(eta[a][c]);
                reached += e[a];
                of_eta += e[a] * eta[a][c];
                of_x += e[a] * x[a][c];
            }
            V total = reached, bar = u[c] * total, logarithm = log_(total);
            reached = (V){};
            for (int a = 0; a < P - 1; a++) { /* not the last place, so that rounding never loses a block */
                reached += e[a];
                count += only(reached <= bar, one);
            }
            for (int a = 0; a < P; a++) {
                M here = count == (float)a;
                eta_there += only(here, eta[a][c]);
                x_there += only(here, x[a][c]);
            }
            at[c] = count;
            value[c] = expected ? of_x / total : x_there;
            mean[c] = of_eta / total - logarithm;
            drawn[c] = eta_there - logarithm;
            sum[c] = logarithm + top[c];
        }
        store(index + i, at, m), store(pooled + i, value, m), store(entropy + i, mean, m), store(log_total + i, sum, m);
        if (log_q) store(log_q + i, drawn, m);
    }
}

/* The gradient of the blocks, `out`, and of the weights, from those of what choose gave (0 where there is none).
   Constants cancel in the gradient of a softmax, so log q may stand for 1 + log q. */
INLINE void choose_back_(int P, long n, long start, long stop, const float *blocks, const float *index,
                         const float *log_total, Weights w, const float *of_z, const float *of_value,
                         const float *of_entropy, const float *of_log_q, int expected, int through, float *out,
                         double *to_inner, double *to_inner_bias, double *to_outer, double *to_outer_bias) {
    Tile x[MOST], hidden[MOST], q[MOST], of_eta[MOST], back[MOST], at, log_sum, value = {}, entropy = {}, log_q = {};
    V by_inner[MOST][MOST] = {}, by_outer[MOST][MOST] = {}, of_inner[MOST] = {}, of_outer[MOST] = {};
    int of_q = expected || through; /* whether the pooled value depends on q */
    for (long i = start; i < stop; i += TILE) {
        int m = stop - i < TILE ? (int)(stop - i) : TILE;
        for (int a = 0; a < P; a++) {
            load(x[a], blocks + a * n + i, m);
            if (of_z)
                load(of_eta[a], of_z + a * n + i, m);
            else
                memset(of_eta[a], 0, sizeof(Tile));
        }
        load(at, index + i, m), load(log_sum, log_total + i, m);
        if (of_value) load(value, of_value + i, m);
        if (of_entropy) load(entropy, of_entropy + i, m);
        if (of_log_q) load(log_q, of_log_q + i, m);
        logits(P, w, x, hidden, q);
        EACH(c) {
            V mean = {}, one = (V){} + 1.0f;
            for (int a = 0; a < P; a++) {
                V logarithm = q[a][c] - log_sum[c];
                q[a][c] = exp_(logarithm);
                of_eta[a][c] += logarithm * entropy[c];
                if (of_q) of_eta[a][c] += x[a][c] * value[c];
                mean += q[a][c] * of_eta[a][c];
            }
            for (int a = 0; a < P; a++) {
                of_eta[a][c] = q[a][c] * (of_eta[a][c] - mean);
                if (of_log_q) of_eta[a][c] += (only(at[c] == (float)a, one) - q[a][c]) * log_q[c];
            }
        }
        if (m < TILE) /* what is beyond the last block must not count: q is not zero there */
            for (int a = 0; a < P; a++) memset((float *)of_eta[a] + m, 0, (TILE - m) * sizeof(float));
        outer_products(P, by_outer, of_outer, of_eta, hidden);
        multiply(P, w.outer, 1, P, 0, of_eta, back);
        for (int a = 0; a < P; a++) EACH(c) back[a][c] -= back[a][c] * hidden[a][c] * hidden[a][c];
        outer_products(P, by_inner, of_inner, back, x);
        multiply(P, w.inner, 1, P, 0, back, of_eta);
        for (int a = 0; a < P; a++) {
            EACH(c) of_eta[a][c] += expected ? q[a][c] * value[c] : only(at[c] == (float)a, value[c]);
            store(out + a * n + i, of_eta[a], m);
        }
    }
    write_sums(P, by_inner, of_inner, to_inner, to_inner_bias);
    write_sums(P, by_outer, of_outer, to_outer, to_outer_bias);
}

/* sum_a q_a x_a alone. */
INLINE void pool_(int P, long n, long start, long stop, const float *blocks, Weights w, float *pooled) {
    Tile x[MOST], hidden[MOST], eta[MOST], top, value;
    for (long i = start; i < stop; i += TILE) {
        int m = stop - i < TILE ? (int)(stop - i) : TILE;
        for (int a = 0; a < P; a++) load(x[a], blocks + a * n + i, m);
        logits(P, w, x, hidden, eta);
        centre(P, eta, top);
        EACH(c) {
            V sum = {}, of_x = {};
            for (int a = 0; a < P; a++) {
                V e = exp_(eta[a][c]);
                sum += e;
                of_x += e * x[a][c];
            }
            value[c] = of_x / sum;
        }
        store(pooled + i, value, m);
    }
}

/* Pools of 2 x 2 and 3 x 3 have code of their own, in which the compiler knows P. */
#define WITH_PLACES(call, ...)             \
    switch (P) {                           \
        case 4: call(4, __VA_ARGS__); break; \
        case 9: call(9, __VA_ARGS__); break; \
        default: call(P, __VA_ARGS__);     \
    }

void choose(int P, long n, long start, long stop, const float *blocks, const float *inner, const float *inner_bias,
            const float *outer, const float *outer_bias, const float *uniform, int expected, float *index, float *pooled,
            float *entropy, float *log_total, float *log_q) {
    Weights w = {inner, inner_bias, outer, outer_bias};
    WITH_PLACES(choose_, n, start, stop, blocks, w, uniform, expected, index, pooled, entropy, log_total, log_q)
}

void choose_back(int P, long n, long start, long stop, const float *blocks, const float *inner, const float *inner_bias,
                 const float *outer, const float *outer_bias, const float *index, const float *log_total,
                 const float *of_z, const float *of_value, const float *of_entropy, const float *of_log_q, int expected,
                 int through, float *out, double *to_inner, double *to_inner_bias, double *to_outer,
                 double *to_outer_bias) {
    Weights w = {inner, inner_bias, outer, outer_bias};
    WITH_PLACES(choose_back_, n, start, stop, blocks, index, log_total, w, of_z, of_value, of_entropy, of_log_q, expected,
                through, out, to_inner, to_inner_bias, to_outer, to_outer_bias)
}

void pool(int P, long n, long start, long stop, const float *blocks, const float *inner, const float *inner_bias,
          const float *outer, const float *outer_bias, float *pooled) {
    Weights w = {inner, inner_bias, outer, outer_bias};
    WITH_PLACES(pool_, n, start, stop, blocks, w, pooled)
}

/* curvature.finish_gradients for rows start <= row < stop of blocks, [K, h] flattened, of w blocks and B images each: the
   gradient of the unpooled values becomes that of z, grad = (grad - E[., z] v weight / 2) v, and that of the values is
   what stood at the drawn place. energies [kinds of rows, kinds of columns, K, P, P] or 0; weight [B]; kind_y [h] and
   kind_x [w] say which block is of which kind. */
void finish(int P, long maps, long h, long w, long batch, long start, long stop, float *restrict grad,
            const float *restrict index, const float *restrict values, const float *restrict energies,
            const float *restrict weight, const int32_t *kind_y, const int32_t *kind_x, long kinds_x,
            float *restrict grad_values) {
    long n = maps * h * w * batch;
    for (long row = start; row < stop; row++)
        for (long x = 0; x < w; x++) {
            long i = (row * w + x) * batch;
            const float *at = index + i, *v = values + i;
            float *to_value = grad_values + i;
            const float *table =
                energies ? energies + ((kind_y[row % h] * kinds_x + kind_x[x]) * maps + row / h) * P * P : 0;
            for (long t = 0; t < batch; t++) to_value[t] = 0.0f;
            for (int a = 0; a < P; a++) {
                float *g = grad + a * n + i;
                if (table)
                    for (long t = 0; t < batch; t++) {
                        float moved = g[t] - 0.5f * table[a * P + (int32_t)at[t]] * v[t] * weight[t];
                        to_value[t] += at[t] == (float)a ? moved : 0.0f;
                        g[t] = moved * v[t];
                    }
                else
                    for (long t = 0; t < batch; t++) {
                        to_value[t] += at[t] == (float)a ? g[t] : 0.0f;
                        g[t] *= v[t];
                    }
            }
        }
}

/* Unpooled values at places first <= a < first + P, [P, maps, length]: the value where the index is a, zero elsewhere.
   The index and the values of a map are `length` long and begin `stride` apart. */
void place(int P, long first, long maps, long length, long stride, const float *restrict index,
           const float *restrict values, float *restrict out) {
    for (int a = 0; a < P; a++)
        for (long k = 0; k < maps; k++) {
            const float *at = index + k * stride, *v = values + k * stride;
            float *to = out + (a * maps + k) * length;
            for (long t = 0; t < length; t++) to[t] = at[t] == (float)(first + a) ? v[t] : 0.0f;
        }
}
