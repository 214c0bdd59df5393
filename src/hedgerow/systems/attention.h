/* What a pass runs over, and the attention of rows over the pages of their own slot. */
#include "kernels.h"

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
 * `sees` [rows, width]: which pending rows of the slot each row sees; the last `rows` of them are the rows' own.
 * `joined`: so many of the first keys are those of the span before, whole pages; spans that share keys are a cluster and
 * name the same number, but for the first, whose number is 0. */
typedef struct { int64_t start, rows, prefix, width; const int32_t *table; const uint8_t *sees; int64_t joined; } Span;
typedef struct { bf16 *pool; int64_t pages, page_len; } Store;

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

/* Weighted sums of values, 64 numbers wide, for R queries over keys `begin` ... `end`, which all of them see, added to
 * `out`. Two keys at a time, at places 2i and 2i + 1: their numbers stand beside each other in bf16 pairs, and so do
 * their weights. */
#define VALUES_TILE(R)                                                                                                 \
    static void values_##R(const Model *m, const Store *kv, const Span *s, int64_t side, int64_t head, int64_t begin,  \
                           int64_t end, const bf16 *w, int64_t ldw, int64_t d, vf out[][4]) {                          \
        vf sum[R][4];                                                                                                  \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < 4; j++) sum[i][j] = out[i][j];                          \
        for (int64_t t0 = begin; t0 < end; t0 += 16) {    /* pages are multiples of 16 */                               \
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
#define VALUES 6          /* queries of the widest of them: 24 sums, 4 pairs of values, a weight */
VALUES_TILE(1) VALUES_TILE(2) VALUES_TILE(3) VALUES_TILE(4) VALUES_TILE(5) VALUES_TILE(6)

static inline void values(int64_t r, const Model *m, const Store *kv, const Span *s, int64_t side, int64_t head,
                          int64_t begin, int64_t end, const bf16 *w, int64_t ldw, int64_t d, vf out[][4]) {
    switch (r) {
#define CASE(R) case R: values_##R(m, kv, s, side, head, begin, end, w, ldw, d, out); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
    }
}

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

/* A query: which row of which span, and which query head. */
typedef struct { const Span *s; int64_t row, head; } Query;

/* Scores of `count` queries for keys `begin` ... `end` of the span of the first; `score` [count, ld]. */
static void score_keys(const Model *m, const Store *kv, const Query *who, int64_t count, int64_t side, int64_t head,
                       int64_t begin, int64_t end, const bf16 *mine, float *score, int64_t ld) {
    int64_t dim = m->dim;
    __m512i keys[dim / 2];
    for (int64_t t = begin; t < end; t += 16) {
        const bf16 *k = place(m, kv, who->s, side, head, t);
        const bf16 *next = t + 16 < end ? place(m, kv, who->s, side, head, t + 16) : k;
        for (int64_t d = 0; d < 16 * dim; d += 32) FETCH(next + d);  /* the next page is not where the processor looks */
        for (int64_t d = 0; d < dim; d += 32) turn(k + d, dim, keys + d / 2);
        int64_t parts = (count + TILE - 1) / TILE;
        for (int64_t i = 0, p = 0; p < parts; p++) {
            int64_t r = (count - i + parts - p - 1) / (parts - p);
            tile_scores(r, mine + i * dim, dim, (const bf16 *)keys, dim, score + i * ld + t, ld);
            i += r;
        }
    }
}

/* Queries `first` ... `first + count` of one key head of the cluster that begins with span `s` and has its first
 * `shared` keys in common. Query i of a span is row i / fold, query head i % fold; those of the next span follow.
 * `q` [rows, heads, dim] bf16; `out` [rows, heads, dim]; `score` holds [count, keys rounded up to 16].
 *
 * Keys in common are read once for all queries, sums of values wait in `out` meanwhile; what is added to the sum of a
 * query, and in which order, is the same as if it were alone. */
static void attend(const Model *m, const Store *kv, const Span *s, int64_t shared, int64_t layer, int64_t head,
                   int64_t first, int64_t count, const bf16 *q, float *out, float *score, bf16 *mine, uint8_t *vis,
                   int32_t *rest) {
    int64_t fold = m->heads / m->kv_heads, dim = m->dim, ld = 0;
    Query who[QUERIES];
    while (first >= s->rows * fold) first -= s++->rows * fold;
    for (int64_t i = 0; i < count; i++, first++) {
        if (first == s->rows * fold) first = 0, s++;
        who[i] = (Query){s, first / fold, head * fold + first % fold};
        int64_t keys = (s->prefix + s->width + 15) / 16 * 16;
        if (keys > ld) ld = keys;
        memcpy(mine + i * dim, q + ((s->start + who[i].row) * m->heads + who[i].head) * dim, dim * sizeof(bf16));
    }
    score_keys(m, kv, who, count, 2 * layer, head, 0, shared, mine, score, ld);
    for (int64_t i = 0, n; i < count; i += n) {
        for (n = 1; i + n < count && who[i + n].s == who[i].s;) n++;
        int64_t end = (who[i].s->prefix + who[i].s->width + 15) / 16 * 16;
        score_keys(m, kv, who + i, n, 2 * layer, head, shared, end, mine + i * dim, score + i * ld, ld);
    }
    float total[QUERIES];
    for (int64_t i = 0; i < count; i++) {
        const Span *own = who[i].s;
        int64_t end = own->prefix + own->width, keys = (end + 15) / 16 * 16, open = own->prefix / 16 * 16;
        if (!i || who[i].s != who[i - 1].s || who[i].row != who[i - 1].row) {
            memset(vis, 1, own->prefix - open);     /* before `open`, every key is seen */
            memcpy(vis + own->prefix - open, own->sees + who[i].row * own->width, own->width);
            memset(vis + end - open, 0, keys - end);
        }
        total[i] = soften(score + i * ld, keys, open, vis, m->scale);
    }
    const bf16 *w = (const bf16 *)score;
    #define SUM(I) (out + ((who[I].s->start + who[I].row) * m->heads + who[I].head) * dim)
    for (int64_t i = 0, r; shared && i < count; i += r) {
        r = count - i < VALUES ? count - i : VALUES;
        for (int64_t d = 0; d < dim; d += 64) {
            vf y[VALUES][4] = {0};
            values(r, m, kv, who[i].s, 2 * layer + 1, head, 0, shared, w + 2 * i * ld, 2 * ld, d, y);
            for (int64_t j = 0; j < r; j++)
                for (int64_t k = 0; k < 4; k++) _mm512_storeu_ps(SUM(i + j) + d + 16 * k, y[j][k]);
        }
    }
    for (int64_t i = 0, r; i < count; i += r) {
        const Span *own = who[i].s;
        for (r = 1; r < VALUES && i + r < count && who[i + r].s == own;) r++;
        int64_t from = who[i].row, to = who[i + r - 1].row, common = 0;
        for (; common < own->width; common++) {       /* pending rows that every row of this tile sees */
            int64_t row = from;
            while (row <= to && own->sees[row * own->width + common]) row++;
            if (row <= to) break;
        }
        int64_t end = own->prefix + own->width, even = (own->prefix + common) / 2 * 2;
        for (int64_t d = 0; d < dim; d += 64) {
            vf y[VALUES][4] = {0};
            for (int64_t j = 0; shared && j < r; j++)
                for (int64_t k = 0; k < 4; k++) y[j][k] = _mm512_loadu_ps(SUM(i + j) + d + 16 * k);
            values(r, m, kv, own, 2 * layer + 1, head, shared, even, w + 2 * i * ld, 2 * ld, d, y);
            int64_t n = 0, listed = -1;
            for (int64_t j = 0; j < r; j++) {
                int64_t row = who[i + j].row;
                if (row != listed) {
                    n = 0, listed = row;
                    for (int64_t t = even; t < end; t++)
                        if (t < own->prefix || own->sees[row * own->width + t - own->prefix]) rest[n++] = (int32_t)t;
                }
                values_rest(m, kv, own, 2 * layer + 1, head, rest, n, w + 2 * (i + j) * ld, d, y[j]);
                vf by = _mm512_set1_ps(total[i + j]);
                store_pairs(SUM(i + j) + d, y[j][0], y[j][1], by);
                store_pairs(SUM(i + j) + d + 32, y[j][2], y[j][3], by);
            }
        }
    }
    #undef SUM
}
