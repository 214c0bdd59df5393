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
#include "layer.h"

void forward(const Model *m, const Store *kv, const Span *spans, int64_t n_spans, const Step *step) {
    atomic_long taken[m->layers];
    Pass pass = open_pass(m, kv, spans, n_spans, step, taken), *p = &pass;
    int64_t rows = step->rows, hidden = m->hidden;

    #pragma omp parallel num_threads((int)step->threads)
    {
        Worker worker = join_pass(p), *w = &worker;
        int64_t me = w->me, all = w->all;
        for (int64_t r = me; r < rows; r += all)
            for (int64_t i = 0; i < hidden; i++) {
                uint32_t bits = (uint32_t)m->embedding[step->tokens[r] * hidden + i] << 16;
                memcpy(p->x + r * hidden + i, &bits, 4);
            }
        meet(&p->here, all);
        for (int64_t l = 0; l < m->layers; l++) {
            for (int64_t t = 0; t < step->tapped; t++)
                if (step->taps[t] == l)
                    for (int64_t r = me; r < rows; r += all) round_bf16(step->tap_out + (t * rows + r) * hidden, p->x + r * hidden, hidden);
            plain_layer(p, w, l);
        }
        for (int64_t t = 0; t < step->tapped; t++)
            if (step->taps[t] == m->layers)
                for (int64_t r = me; r < rows; r += all) {
                    norm_row(p->x + r * hidden, m->norm, m->eps, hidden, w->line);
                    round_bf16(step->tap_out + (t * rows + r) * hidden, w->line, hidden);
                }
        if (step->last_out)
            for (int64_t r = me; r < rows; r += all) {
                norm_row(p->x + r * hidden, m->norm, m->eps, hidden, w->line);
                round_bf16(step->last_out + r * hidden, w->line, hidden);
            }
        if (step->kept) run_head(p, w);
    }
}

#include "drafter.h"
