/* One forward pass of a decoder-only transformer over packed rows, for CPUs with AVX-512.
 *
 * Every row is computed as if it were alone. Each number of a row is a sum taken in an order that only the row itself
 * decides: matrix products run along the inner dimension, attention along the row's own keys in order of position
 * (keys between them that it does not see have weight zero and add nothing), and the normaliser of the softmax is an
 * integer sum, which has no order. So a row has the same bits in a plain step, in any tree and in any batch.
 *
 * Threads share one parallel region and meet at barriers. What is cheap (norms, rounding, quantisation) every thread
 * does for itself, because waiting for another costs more.
 */
#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANES 16
#define PANEL 32          /* columns of a weight panel: two vectors */
#define TILE 12           /* rows of a register tile: 12 x 2 sums, 2 weights, 1 broadcast fit into 32 registers */
#define QUERIES 24        /* most queries of one attention unit: two register tiles share a block of keys */
#define AHEAD 16          /* steps along the inner dimension by which weights are fetched ahead */

typedef uint16_t bf16;
typedef __m512 vf;

enum { BF16, INT8 };
enum { STORE, ADD, GATE };

/* Weights [n, k] as panels [n/32][k/2][32][2] (bf16) or [n/32][k/4][32][4] (int8). int8 has, for every `group` inner
 * elements and column, a scale, and -128 times the sum of the weights (activations are stored with 128 added). */
typedef struct { int64_t kind, n, k, group; const void *w; const float *scale; const int32_t *comp; const float *bias; } Linear;
typedef struct { const float *norm_in, *norm_mid, *norm_q, *norm_k; Linear qkv, out, gate_up, down; } Layer;
typedef struct {
    int64_t layers, hidden, heads, kv_heads, dim, rotated, inner, vocab;
    float eps, scale;
    const bf16 *embedding;
    const float *cos, *sin, *norm;
    Linear head;
    const Layer *layer;
} Model;
/* Rows `start` ... of the pass belong to a slot with `prefix` committed keys; the slot's keys lie in pages `table`.
 * `sees` [rows, width]: which pending rows of the slot each row sees; the last `rows` of them are the rows' own. */
typedef struct { int64_t start, rows, prefix, width; const int32_t *table; const uint8_t *sees; } Span;
typedef struct { bf16 *pool; int64_t pages, page_len; } Store;
typedef struct {
    const int64_t *tokens, *positions, *keep, *taps;
    int64_t rows, kept, tapped;
    bf16 *tap_out, *last_out;
    float *logits, *ranks;
    int64_t top;
    double *seconds;      /* by part: matmul, attention, head, other; NULL = not asked for */
    char *scratch;
    int64_t threads;
} Step;

static inline vf widen(__m256i x) { return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
static inline vf load_bf16(const bf16 *p) { return widen(_mm256_loadu_si256((const __m256i *)p)); }

static inline __m256i narrow(vf x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i b = (__m512i)x, odd = _mm512_and_epi32(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16));
#endif
}

/* sum + a.even * b.even + a.odd * b.odd over pairs of bf16 */
static inline vf dot_bf16(vf sum, __m512i a, __m512i b) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    sum = _mm512_fmadd_ps((vf)_mm512_and_epi32(a, high), (vf)_mm512_and_epi32(b, high), sum);
    return _mm512_fmadd_ps((vf)_mm512_slli_epi32(a, 16), (vf)_mm512_slli_epi32(b, 16), sum);
#endif
}

/* sum + four products of unsigned a and signed b */
static inline __m512i dot_int8(__m512i sum, __m512i a, __m512i b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, a, b);
#else
    const __m512i even = _mm512_set1_epi16(0x00ff);
    __m512i ae = _mm512_and_si512(a, even), ao = _mm512_srli_epi16(a, 8);
    __m512i be = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8), bo = _mm512_srai_epi16(b, 8);
    return _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_madd_epi16(ae, be), _mm512_madd_epi16(ao, bo)));
#endif
}

/* e^x to 2 ulp for x <= 0, 0 below the range of floats */
static inline vf vexp(vf x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
    vf n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    vf r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    vf y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

/* ------------------------------------------------------------------------------------------------ matrix products */

#define UNROLL _Pragma("GCC unroll 16")
#define FETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

#define BF16_TILE(R, V)                                                                                                \
    static void bf16_##R##_##V(const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c, int64_t ldc) {          \
        vf sum[R][V];                                                                                                  \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < V; j++) sum[i][j] = _mm512_setzero_ps();                \
        for (int64_t t = 0; t < k / 2; t++, b += 32 * V) {                                                             \
            __m512i w[V];                                                                                              \
            UNROLL for (int j = 0; j < V; j++) { w[j] = _mm512_loadu_si512(b + 32 * j); FETCH(b + 32 * (V * AHEAD + j)); } \
            UNROLL for (int i = 0; i < R; i++) {                                                                       \
                __m512i x = _mm512_set1_epi32(*(const int32_t *)(a + i * lda + 2 * t));                                \
                UNROLL for (int j = 0; j < V; j++) sum[i][j] = dot_bf16(sum[i][j], x, w[j]);                           \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < V; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, sum[i][j]); \
    }
/* Integer products of one group, begun at `begin`. */
#define INT8_TILE(R)                                                                                                   \
    static __attribute__((noinline)) void int8_##R(const uint8_t *a, int64_t lda, const int8_t *b, int64_t k,          \
                                                   const int32_t *begin, int32_t *c) {                                 \
        __m512i sum[R][2], z0 = _mm512_loadu_si512(begin), z1 = _mm512_loadu_si512(begin + 16);                        \
        UNROLL for (int i = 0; i < R; i++) { sum[i][0] = z0; sum[i][1] = z1; }                                         \
        for (int64_t t = 0; t < k / 4; t++, b += 128) {                                                                \
            __m512i w0 = _mm512_loadu_si512(b), w1 = _mm512_loadu_si512(b + 64);                                       \
            FETCH(b + 128 * AHEAD); FETCH(b + 128 * AHEAD + 64);                                                       \
            UNROLL for (int i = 0; i < R; i++) {                                                                       \
                __m512i x = _mm512_set1_epi32(*(const int32_t *)(a + i * lda + 4 * t));                                \
                sum[i][0] = dot_int8(sum[i][0], x, w0);                                                                \
                sum[i][1] = dot_int8(sum[i][1], x, w1);                                                                \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < 2; j++) _mm512_storeu_si512(c + i * PANEL + 16 * j, sum[i][j]); \
    }
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define BOTH_WIDTHS(R) BF16_TILE(R, 1) BF16_TILE(R, 2)
FOR_ROWS(BOTH_WIDTHS)
FOR_ROWS(INT8_TILE)

static inline void tile_bf16(int64_t r, const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c) {
#define CASE(R) case R: bf16_##R##_2(a, lda, b, k, c, PANEL); break;
    switch (r) { FOR_ROWS(CASE) }
#undef CASE
}
static inline void tile_scores(int64_t r, const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c, int64_t ldc) {
#define CASE(R) case R: bf16_##R##_1(a, lda, b, k, c, ldc); break;
    switch (r) { FOR_ROWS(CASE) }
#undef CASE
}
/* Activations of all rows as a product wants them, one copy a thread. */
typedef struct { bf16 *half; uint8_t *byte; float *scale; } Rows;

static void round_bf16(bf16 *out, const float *x, int64_t k) {
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) _mm256_storeu_si256((__m256i *)(out + i), narrow(_mm512_loadu_ps(x + i)));
    if (i < k) {
        __mmask16 rest = (__mmask16)((1u << (k - i)) - 1);
        _mm256_mask_storeu_epi16(out + i, rest, narrow(_mm512_maskz_loadu_ps(rest, x + i)));
    }
}

/* Returns the scale: the largest value is 127 steps from zero, which is stored as 128. */
static float round_int8(uint8_t *out, const float *x, int64_t k) {
    vf most = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    __mmask16 rest = (__mmask16)((1u << (k - i)) - 1);
    if (i < k) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(rest, x + i)));
    float high = _mm512_reduce_max_ps(most);
    vf by = _mm512_set1_ps(high > 0 ? 127.0f / high : 0.0f);
    const __m512i zero = _mm512_set1_epi32(128);
    for (i = 0; i + LANES <= k; i += LANES) {
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), by)), zero);
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(q));
    }
    if (i < k) {
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(rest, x + i), by)), zero);
        _mm_mask_storeu_epi8(out + i, rest, _mm512_cvtepi32_epi8(q));
    }
    return high / 127.0f;
}

static void round_row(const Rows *to, const Linear *l, int64_t row, const float *x) {
    if (l->kind == BF16) { round_bf16(to->half + row * l->k, x, l->k); return; }
    int64_t groups = l->k / l->group;
    for (int64_t g = 0; g < groups; g++)
        to->scale[row * groups + g] = round_int8(to->byte + row * l->k + g * l->group, x + g * l->group, l->group);
}

static void round_rows(const Rows *to, const Linear *l, int64_t rows, const float *x) {
    for (int64_t r = 0; r < rows; r++) round_row(to, l, r, x + r * l->k);
}

/* One panel over all groups: integers within a group, then one scale a row, column and group. */
static void tile_int8(int64_t r, const Linear *l, int64_t panel, const Rows *x, int64_t row, float *out) {
    int64_t groups = l->k / l->group, wide = (l->n + PANEL - 1) / PANEL * PANEL;
    int32_t sum[TILE * PANEL] __attribute__((aligned(64)));
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *a = x->byte + row * l->k + g * l->group;
        const int8_t *b = (const int8_t *)l->w + (panel * l->k + g * l->group) * PANEL;
        const int32_t *comp = l->comp + g * wide + panel * PANEL;
        switch (r) {
#define CASE(R) case R: int8_##R(a, l->k, b, l->group, comp, sum); break;
            FOR_ROWS(CASE)
#undef CASE
        }
        const float *scale = l->scale + g * wide + panel * PANEL;
        vf s0 = _mm512_loadu_ps(scale), s1 = _mm512_loadu_ps(scale + 16);
        for (int64_t i = 0; i < r; i++) {
            float *y = out + i * PANEL;
            vf by = _mm512_set1_ps(x->scale[(row + i) * groups + g]);
            vf z0 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sum + i * PANEL)), s0);
            vf z1 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sum + i * PANEL + 16)), s1);
            _mm512_store_ps(y, g ? _mm512_fmadd_ps(z0, by, _mm512_load_ps(y)) : _mm512_mul_ps(z0, by));
            _mm512_store_ps(y + 16, g ? _mm512_fmadd_ps(z1, by, _mm512_load_ps(y + 16)) : _mm512_mul_ps(z1, by));
        }
    }
}

/* This thread's share of the columns of y = x w' + bias, put into `to` [rows, ld] as `how` says. */
static void linear(const Linear *l, const Rows *x, int64_t rows, int how, float *to, int64_t ld, int64_t me, int64_t all) {
    int64_t panels = (l->n + PANEL - 1) / PANEL;
    float out[TILE * PANEL] __attribute__((aligned(64)));
    for (int64_t p = panels * me / all; p < panels * (me + 1) / all; p++) {
        vf bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        if (l->bias) { bias[0] = _mm512_loadu_ps(l->bias + p * PANEL); bias[1] = _mm512_loadu_ps(l->bias + p * PANEL + 16); }
        int64_t tiles = (rows + TILE - 1) / TILE, row = 0;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = (rows - row + tiles - t - 1) / (tiles - t);
            if (l->kind == BF16) {
                tile_bf16(r, x->half + row * l->k, l->k, (const bf16 *)l->w + p * PANEL * l->k, l->k, out);
            } else {
                tile_int8(r, l, p, x, row, out);
            }
            for (int64_t i = 0; i < r; i++) {
                vf y0 = _mm512_add_ps(_mm512_load_ps(out + i * PANEL), bias[0]);
                vf y1 = _mm512_add_ps(_mm512_load_ps(out + i * PANEL + 16), bias[1]);
                float *at = to + (row + i) * ld;
                if (how == GATE) {        /* a panel is 16 columns of the gate beside the same 16 of up */
                    vf e = vexp(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(y0)));
                    vf one = _mm512_set1_ps(1.0f), s = _mm512_div_ps(one, _mm512_add_ps(one, e));
                    __mmask16 below = _mm512_cmp_ps_mask(y0, _mm512_setzero_ps(), _CMP_LT_OQ);
                    s = _mm512_mask_mul_ps(s, below, s, e);
                    int64_t left = ld - p * 16;
                    __mmask16 m = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                    _mm512_mask_storeu_ps(at + p * 16, m, _mm512_mul_ps(_mm512_mul_ps(y0, s), y1));
                    continue;
                }
                int64_t left = l->n - p * PANEL;
                __mmask16 m0 = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                __mmask16 m1 = left >= 32 ? 0xffff : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
                at += p * PANEL;
                if (how == ADD) {
                    y0 = _mm512_add_ps(y0, _mm512_maskz_loadu_ps(m0, at));
                    y1 = _mm512_add_ps(y1, _mm512_maskz_loadu_ps(m1, at + 16));
                }
                _mm512_mask_storeu_ps(at, m0, y0);
                _mm512_mask_storeu_ps(at + 16, m1, y1);
            }
            row += r;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ rows */

/* x / sqrt(mean x^2 + eps) * w */
static void norm_row(const float *x, const float *w, float eps, int64_t n, float *out) {
    vf sum = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) { vf v = _mm512_loadu_ps(x + i); sum = _mm512_fmadd_ps(v, v, sum); }
    float square = _mm512_reduce_add_ps(sum);
    for (; i < n; i++) square += x[i] * x[i];
    float by = 1.0f / sqrtf(square / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES)
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(by)), _mm512_loadu_ps(w + i)));
    for (; i < n; i++) out[i] = x[i] * by * w[i];
}

/* Rotates pairs (i, i + rotated/2) of one head in place. */
static void rotate(float *x, const float *cos, const float *sin, int64_t rotated) {
    int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

/* The k largest of n values, largest first, equal ones in order of index: out[0] is the first index, then k indices,
 * then k values. k = 0: the first index only. */
static void rank(const float *x, int64_t n, int64_t k, float *out) {
    int64_t want = k ? k : 1, have = 0;
    float value[want];
    int32_t index[want];
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 in = n - i >= LANES ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        vf v = _mm512_maskz_loadu_ps(in, x + i);
        __mmask16 better = in;
        if (have == want) better = _mm512_mask_cmp_ps_mask(in, v, _mm512_set1_ps(value[want - 1]), _CMP_GT_OQ);
        while (better) {
            int j = __builtin_ctz(better);
            better &= better - 1;
            float y = x[i + j];
            if (have == want && !(y > value[want - 1])) continue;
            int64_t at = have < want ? have++ : want - 1;
            for (; at && y > value[at - 1]; at--) { value[at] = value[at - 1]; index[at] = index[at - 1]; }
            value[at] = y;
            index[at] = (int32_t)(i + j);
        }
    }
    out[0] = (float)index[0];
    for (int64_t i = 0; i < k; i++) { out[1 + i] = (float)index[i]; out[1 + k + i] = value[i]; }
}

/* ------------------------------------------------------------------------------------------------ attention */

static inline bf16 *place(const Model *m, const Store *kv, const Span *s, int64_t side, int64_t head, int64_t t) {
    int64_t page = s->table[t / kv->page_len];
    return kv->pool + (((side * kv->pages + page) * m->kv_heads + head) * kv->page_len + t % kv->page_len) * m->dim;
}

/* 16 keys of 32 numbers each -> 16 vectors, each a pair of numbers of all 16 keys */
static inline void turn(const bf16 *k, int64_t dim, __m512i *out) {
    __m512i r[16], t[16];
    UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(k + i * dim);
    UNROLL for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        out[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        out[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        out[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        out[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* e^x for x <= 0 to 5e-6: more than a weight in bf16 can hold */
static inline vf weigh(vf x) {
    x = _mm512_mul_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(1.44269504f));
    vf n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT), r = _mm512_sub_ps(x, n);
    vf y = _mm512_set1_ps(9.6181291e-3f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

/* Weighted sums of values, 64 numbers wide, for R queries over the first `end` keys, which all of them see. Two keys at
 * a time, at places 2i and 2i + 1: their numbers stand beside each other in bf16 pairs, and so do their weights. */
#define VALUES_TILE(R)                                                                                                 \
    static void values_##R(const Model *m, const Store *kv, const Span *s, int64_t side, int64_t head, int64_t end,    \
                           const bf16 *w, int64_t ldw, int64_t d, vf out[][4]) {                                       \
        vf sum[R][4];                                                                                                  \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < 4; j++) sum[i][j] = _mm512_setzero_ps();                \
        for (int64_t t0 = 0; t0 < end; t0 += 16) {    /* pages are multiples of 16 */                                   \
            int64_t last = end - t0 < 16 ? end - t0 : 16;                                                              \
            const bf16 *v = place(m, kv, s, side, head, t0) + d;                                                       \
            const bf16 *next = t0 + 16 < end ? place(m, kv, s, side, head, t0 + 16) + d : v;                           \
            for (int64_t t = 0; t < last; t += 2, v += 2 * m->dim, next += 2 * m->dim) {                               \
                FETCH(next); FETCH(next + 32); FETCH(next + m->dim); FETCH(next + m->dim + 32);                        \
                __m512i a0 = _mm512_loadu_si512(v), a1 = _mm512_loadu_si512(v + 32);                                   \
                __m512i b0 = _mm512_loadu_si512(v + m->dim), b1 = _mm512_loadu_si512(v + m->dim + 32);                 \
                __m512i x[4] = {_mm512_unpacklo_epi16(a0, b0), _mm512_unpackhi_epi16(a0, b0),                          \
                                _mm512_unpacklo_epi16(a1, b1), _mm512_unpackhi_epi16(a1, b1)};                         \
                UNROLL for (int i = 0; i < R; i++) {                                                                   \
                    __m512i y = _mm512_set1_epi32(*(const int32_t *)(w + i * ldw + t0 + t));                           \
                    UNROLL for (int j = 0; j < 4; j++) sum[i][j] = dot_bf16(sum[i][j], y, x[j]);                       \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < 4; j++) out[i][j] = sum[i][j];                          \
    }
VALUES_TILE(1) VALUES_TILE(2) VALUES_TILE(3) VALUES_TILE(4) VALUES_TILE(5) VALUES_TILE(6)

/* The rest of one query's keys, `n` of them at places `at`, in pairs as above; a last odd key is paired with weight 0. */
static void values_rest(const Model *m, const Store *kv, const Span *s, int64_t side, int64_t head, const int32_t *at,
                        int64_t n, const bf16 *w, int64_t d, vf sum[4]) {
    for (int64_t i = 0; i < n; i += 2) {
        int64_t last = i + 1 < n;
        const bf16 *a = place(m, kv, s, side, head, at[i]) + d, *b = place(m, kv, s, side, head, at[i + last]) + d;
        uint32_t pair = (uint32_t)w[at[i]] | (last ? (uint32_t)w[at[i + 1]] << 16 : 0);
        __m512i a0 = _mm512_loadu_si512(a), a1 = _mm512_loadu_si512(a + 32);
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 32), y = _mm512_set1_epi32((int)pair);
        sum[0] = dot_bf16(sum[0], y, _mm512_unpacklo_epi16(a0, b0));
        sum[1] = dot_bf16(sum[1], y, _mm512_unpackhi_epi16(a0, b0));
        sum[2] = dot_bf16(sum[2], y, _mm512_unpacklo_epi16(a1, b1));
        sum[3] = dot_bf16(sum[3], y, _mm512_unpackhi_epi16(a1, b1));
    }
}

/* Undoes the order in which unpacking pairs of vectors leaves 32 numbers. */
static inline void store_pairs(float *to, vf low, vf high, vf by) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    _mm512_storeu_ps(to, _mm512_div_ps(_mm512_permutex2var_ps(low, first, high), by));
    _mm512_storeu_ps(to + 16, _mm512_div_ps(_mm512_permutex2var_ps(low, second, high), by));
}

/* Scores of one query -> weights exp(scale (score - most)) in bf16, in place; returns their sum. Units of 2^-24 are
 * exact for all that counts, and integers add up to the same in any order. */
static float soften(float *score, int64_t ld, int64_t open, const uint8_t *vis, float scale) {
    vf by = _mm512_set1_ps(scale), most = _mm512_set1_ps(-INFINITY);
    for (int64_t t = 0; t < open; t += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(score + t));
    for (int64_t t = open; t < ld; t += 16) {
        __m128i b = _mm_loadu_si128((const __m128i *)(vis + t - open));
        vf x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), _mm_test_epi8_mask(b, b), score + t);
        _mm512_storeu_ps(score + t, x);
        most = _mm512_max_ps(most, x);
    }
    vf high = _mm512_set1_ps(_mm512_reduce_max_ps(most)), unit = _mm512_set1_ps(16777216.0f);
    bf16 *out = (bf16 *)score;
    int64_t sum = 0;
    for (int64_t t = 0; t < ld;) {
        __m512i part = _mm512_setzero_si512();
        for (int64_t stop = t + 1024 < ld ? t + 1024 : ld; t < stop; t += 16) {
            vf x = _mm512_loadu_ps(score + t);
            __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-INFINITY), _CMP_GT_OQ);
            __m256i w = narrow(_mm512_maskz_mov_ps(seen, weigh(_mm512_mul_ps(_mm512_sub_ps(x, high), by))));
            _mm256_storeu_si256((__m256i *)(out + t), w);
            part = _mm512_add_epi32(part, _mm512_cvtps_epi32(_mm512_mul_ps(widen(w), unit)));
        }
        sum += _mm512_reduce_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(part)));
        sum += _mm512_reduce_add_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(part, 1)));
    }
    return (float)((double)sum / 16777216.0);
}

/* Queries `first` ... `first + count` of one key head of one span. Query i is row i / fold, query head i % fold.
 * `q` [rows, heads, dim] bf16; `out` [rows, heads, dim]; `score` holds [count, keys rounded up to 16]. */
static void attend(const Model *m, const Store *kv, const Span *s, int64_t layer, int64_t head, int64_t first, int64_t count,
                   const bf16 *q, float *out, float *score, bf16 *mine, uint8_t *vis, int32_t *rest) {
    int64_t fold = m->heads / m->kv_heads, dim = m->dim, end = s->prefix + s->width, ld = (end + 15) / 16 * 16;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / fold, h = head * fold + (first + i) % fold;
        memcpy(mine + i * dim, q + ((s->start + row) * m->heads + h) * dim, dim * sizeof(bf16));
    }
    __m512i keys[dim / 2];
    for (int64_t t = 0; t < ld; t += 16) {
        const bf16 *k = place(m, kv, s, 2 * layer, head, t);
        const bf16 *next = t + 16 < ld ? place(m, kv, s, 2 * layer, head, t + 16) : k;
        for (int64_t d = 0; d < 16 * dim; d += 32) FETCH(next + d);  /* the next page is not where the processor looks */
        for (int64_t d = 0; d < dim; d += 32) turn(k + d, dim, keys + d / 2);
        int64_t parts = (count + TILE - 1) / TILE;
        for (int64_t i = 0, p = 0; p < parts; p++) {
            int64_t r = (count - i + parts - p - 1) / (parts - p);
            tile_scores(r, mine + i * dim, dim, (const bf16 *)keys, dim, score + i * ld + t, ld);
            i += r;
        }
    }
    int64_t open = s->prefix / 16 * 16;   /* before it, every key is seen */
    float total[QUERIES];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / fold;
        if (!i || row != (first + i - 1) / fold) {
            memset(vis, 1, s->prefix - open);
            memcpy(vis + s->prefix - open, s->sees + row * s->width, s->width);
            memset(vis + end - open, 0, ld - end);
        }
        total[i] = soften(score + i * ld, ld, open, vis, m->scale);
    }
    const bf16 *w = (const bf16 *)score;
    for (int64_t i = 0; i < count;) {
        int64_t r = count - i < 6 ? count - i : 6, from = (first + i) / fold, to = (first + i + r - 1) / fold, common = 0;
        for (; common < s->width; common++) {         /* pending rows that every row of this tile sees */
            int64_t row = from;
            while (row <= to && s->sees[row * s->width + common]) row++;
            if (row <= to) break;
        }
        int64_t even = (s->prefix + common) / 2 * 2;
        for (int64_t d = 0; d < dim; d += 64) {
            vf y[6][4];
            switch (r) {
#define CASE(R) case R: values_##R(m, kv, s, 2 * layer + 1, head, even, w + 2 * i * ld, 2 * ld, d, y); break;
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
            }
            int64_t n = 0, listed = -1;
            for (int64_t j = 0; j < r; j++) {
                int64_t row = (first + i + j) / fold, h = head * fold + (first + i + j) % fold;
                if (row != listed) {
                    n = 0, listed = row;
                    for (int64_t t = even; t < end; t++)
                        if (t < s->prefix || s->sees[row * s->width + t - s->prefix]) rest[n++] = (int32_t)t;
                }
                values_rest(m, kv, s, 2 * layer + 1, head, rest, n, w + 2 * (i + j) * ld, d, y[j]);
                float *at = out + ((s->start + row) * m->heads + h) * dim + d;
                vf by = _mm512_set1_ps(total[i + j]);
                store_pairs(at, y[j][0], y[j][1], by);
                store_pairs(at + 32, y[j][2], y[j][3], by);
            }
        }
        i += r;
    }
}

/* ------------------------------------------------------------------------------------------------ the pass */

static int64_t up(int64_t n) { return (n + 63) / 64 * 64; }

static int64_t widest(const Model *m) {
    int64_t k = m->hidden, a = m->heads * m->dim;
    if (a > k) k = a;
    return m->inner > k ? m->inner : k;
}

/* Bytes one thread needs for itself: rounded rows, scales, one row, scores, queries, a row of the mask. */
static int64_t own_bytes(const Model *m, int64_t rows, int64_t keys) {
    int64_t k = widest(m);
    return up(rows * k * 2 + 256) + up(rows * k / 4) + up(k * 4) + up(QUERIES * (keys + 16) * 4) + up(QUERIES * m->dim * 2) + up(keys + 64)
         + up((keys + 16) * 4);
}

static int64_t shared_bytes(const Model *m, int64_t rows) {
    int64_t a = m->heads * m->dim, b = a + 2 * m->kv_heads * m->dim;
    return up(rows * m->hidden * 4) + up(rows * b * 4) + up(rows * a * 4) + up(rows * m->inner * 4) + up(rows * a * 2);
}

int64_t scratch_bytes(const Model *m, int64_t rows, int64_t keys, int64_t threads) {
    return shared_bytes(m, rows) + threads * own_bytes(m, rows, keys) + 64;
}

/* Where threads meet. They spin for as long as a fair share of work takes and then sleep: OpenMP's own barrier would go
 * on spinning, and when another program takes a core, keep the thread that is waited for from running at all. */
typedef struct { atomic_int arrived, phase, asleep; } Meeting;
#define SPINS 4000

static void meet(Meeting *at, int64_t all) {
    int phase = atomic_load(&at->phase);
    if (atomic_fetch_add(&at->arrived, 1) == all - 1) {
        atomic_store(&at->arrived, 0);
        atomic_store(&at->phase, phase + 1);
        if (atomic_load(&at->asleep)) syscall(SYS_futex, &at->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&at->phase, memory_order_acquire) != phase) return;
        _mm_pause();
    }
    atomic_fetch_add(&at->asleep, 1);
    while (atomic_load(&at->phase) == phase) syscall(SYS_futex, &at->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&at->asleep, 1);
}

static double lap(double *since, double *into) {
    double now = omp_get_wtime();
    if (into) *into += now - *since;
    return *since = now;
}

void forward(const Model *m, const Store *kv, const Span *spans, int64_t n_spans, const Step *step) {
    int64_t rows = step->rows, dim = m->dim, heads = m->heads, kvh = m->kv_heads, hidden = m->hidden, fold = heads / kvh;
    int64_t qkv_n = (heads + 2 * kvh) * dim, keys = 0, asked = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        int64_t end = spans[i].prefix + spans[i].width;
        if (end > keys) keys = end;
        asked += spans[i].rows * fold * kvh;
    }
    /* units small enough that every thread gets several */
    int64_t chunk = asked / (step->threads * 4) + 1;
    if (chunk > QUERIES) chunk = QUERIES;
    int64_t units = 0;
    for (int64_t i = 0; i < n_spans; i++) units += kvh * ((spans[i].rows * fold + chunk - 1) / chunk);
    char *at = (char *)(((uintptr_t)step->scratch + 63) & ~(uintptr_t)63);
    float *x = (float *)at; at += up(rows * hidden * 4);
    float *qkv = (float *)at; at += up(rows * qkv_n * 4);
    float *attended = (float *)at; at += up(rows * heads * dim * 4);
    float *inner = (float *)at; at += up(rows * m->inner * 4);
    bf16 *q = (bf16 *)at; at += up(rows * heads * dim * 2);
    int64_t own = own_bytes(m, rows, keys);
    Meeting here = {0, 0, 0};
    atomic_long taken[m->layers];         /* attention units begun, by layer */
    for (int64_t l = 0; l < m->layers; l++) atomic_init(taken + l, 0);

    #pragma omp parallel num_threads((int)step->threads)
    {
        int64_t me = omp_get_thread_num(), all = omp_get_num_threads(), wide = widest(m);
        double *sec = me == 0 ? step->seconds : NULL, since = omp_get_wtime();
        char *my = at + me * own;
        Rows a = {(bf16 *)my, (uint8_t *)my, NULL};
        my += up(rows * wide * 2 + 256);
        a.scale = (float *)my; my += up(rows * wide / 4);
        float *line = (float *)my; my += up(wide * 4);
        float *score = (float *)my; my += up(QUERIES * (keys + 16) * 4);
        bf16 *mine = (bf16 *)my; my += up(QUERIES * dim * 2);
        uint8_t *vis = (uint8_t *)my; my += up(keys + 64);
        int32_t *rest = (int32_t *)my;

        for (int64_t r = me; r < rows; r += all)
            for (int64_t i = 0; i < hidden; i++) {
                uint32_t bits = (uint32_t)m->embedding[step->tokens[r] * hidden + i] << 16;
                memcpy(x + r * hidden + i, &bits, 4);
            }
        meet(&here, all);
        for (int64_t l = 0; l <= m->layers; l++) {
            for (int64_t t = 0; t < step->tapped; t++)
                if (step->taps[t] == l && l < m->layers) {
                    for (int64_t r = me; r < rows; r += all) round_bf16(step->tap_out + (t * rows + r) * hidden, x + r * hidden, hidden);
                }
            if (l == m->layers) break;
            const Layer *y = m->layer + l;
            for (int64_t r = 0; r < rows; r++) {
                norm_row(x + r * hidden, y->norm_in, m->eps, hidden, line);
                round_row(&a, &y->qkv, r, line);
            }
            if (sec) lap(&since, sec + 3);
            linear(&y->qkv, &a, rows, STORE, qkv, qkv_n, me, all);
            meet(&here, all);
            if (sec) lap(&since, sec);
            for (int64_t i = 0; i < n_spans; i++)
                for (int64_t h = me; h < heads + 2 * kvh; h += all) {
                    const Span *s = spans + i;
                    for (int64_t r = 0; r < s->rows; r++) {
                        int64_t row = s->start + r, t = s->prefix + s->width - s->rows + r;
                        const float *c = m->cos + step->positions[row] * m->rotated, *sn = m->sin + step->positions[row] * m->rotated;
                        float *v = qkv + row * qkv_n + h * dim;
                        if (h < heads + kvh) {
                            const float *w = h < heads ? y->norm_q : y->norm_k;
                            if (w) norm_row(v, w, m->eps, dim, v);
                            rotate(v, c, sn, m->rotated);
                        }
                        bf16 *to = h < heads ? q + (row * heads + h) * dim
                                 : h < heads + kvh ? place(m, kv, s, 2 * l, h - heads, t)
                                                   : place(m, kv, s, 2 * l + 1, h - heads - kvh, t);
                        round_bf16(to, v, dim);
                    }
                }
            meet(&here, all);
            for (int64_t u; (u = atomic_fetch_add(taken + l, 1)) < units;) {
                int64_t i = 0, left = u, parts;
                while (left >= (parts = kvh * ((spans[i].rows * fold + chunk - 1) / chunk))) { left -= parts; i++; }
                int64_t per = parts / kvh, n = spans[i].rows * fold, first = left % per * chunk;
                attend(m, kv, spans + i, l, left / per, first, n - first < chunk ? n - first : chunk, q, attended, score, mine, vis, rest);
            }
            meet(&here, all);
            if (sec) lap(&since, sec + 1);
            round_rows(&a, &y->out, rows, attended);
            linear(&y->out, &a, rows, ADD, x, hidden, me, all);
            meet(&here, all);
            if (sec) lap(&since, sec);
            for (int64_t r = 0; r < rows; r++) {
                norm_row(x + r * hidden, y->norm_mid, m->eps, hidden, line);
                round_row(&a, &y->gate_up, r, line);
            }
            if (sec) lap(&since, sec + 3);
            linear(&y->gate_up, &a, rows, GATE, inner, m->inner, me, all);
            meet(&here, all);
            round_rows(&a, &y->down, rows, inner);
            linear(&y->down, &a, rows, ADD, x, hidden, me, all);
            meet(&here, all);
            if (sec) lap(&since, sec);
        }
        for (int64_t t = 0; t < step->tapped; t++)
            if (step->taps[t] == m->layers)
                for (int64_t r = me; r < rows; r += all) {
                    norm_row(x + r * hidden, m->norm, m->eps, hidden, line);
                    round_bf16(step->tap_out + (t * rows + r) * hidden, line, hidden);
                }
        if (step->last_out)
            for (int64_t r = me; r < rows; r += all) {
                norm_row(x + r * hidden, m->norm, m->eps, hidden, line);
                round_bf16(step->last_out + r * hidden, line, hidden);
            }
        if (step->kept) {
            for (int64_t r = 0; r < step->kept; r++) {
                norm_row(x + step->keep[r] * hidden, m->norm, m->eps, hidden, line);
                round_row(&a, &m->head, r, line);
            }
            linear(&m->head, &a, step->kept, STORE, step->logits, m->vocab, me, all);
            meet(&here, all);
            for (int64_t r = me; r < step->kept; r += all)
                rank(step->logits + r * m->vocab, m->vocab, step->top, step->ranks + r * (1 + 2 * step->top));
            if (sec) lap(&since, sec + 2);
        }
    }
}
