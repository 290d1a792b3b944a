/* What Python hands over. Pointers are C-contiguous arrays; checks have been made before the call.
 *
 * A model is a chain of dense layers of widths[0] ... widths[layers]; the outputs of the latent layer and of the last
 * layer are linear, the others pass a ReLU. Its flat vector holds, layer after layer, the weights (inputs, outputs)
 * and then the bias (outputs), without padding.
 *
 * library.py mirrors the structures field by field and compares their sizes when it loads.
 */
#ifndef GCA_KERNEL_H
#define GCA_KERNEL_H

#include <stdint.h>

struct gca_model {
    int64_t layers;
    int64_t latent_layer;
    const int64_t *widths;
};

enum gca_objective { GCA_RECONSTRUCTION = 0, GCA_ALIGNMENT = 1 };

struct gca_training {
    struct gca_model model;
    float *parameters, *first_moment, *second_moment; /* flat; read, trained, written back */
    int64_t encoder_steps, decoder_steps;             /* Adam steps taken before this call */
    const float *samples;                             /* (N, d_x) */
    const int64_t *orders;                            /* (epochs, records), indices into samples */
    int64_t epochs, records, batch_size;
    const double *learning_rates; /* (epochs) */
    double *losses;               /* (epochs), written: sums over the records of an epoch */
    int64_t objective;
    const float *centroids, *weights; /* alignment: (components, d_z), (components) */
    int64_t components;
    const float *anchor; /* flat, or null: no proximal term */
    double mu;
};

struct gca_inference {
    struct gca_model model;
    const float *parameters;
    const float *samples; /* (records, d_x) */
    int64_t records;
    float *codes;  /* (records, d_z), or null */
    float *scores; /* (records), or null */
};

/* Instruction sets in order of preference; a machine runs those whose bit gca_paths() sets. */
enum gca_path { GCA_AVX512 = 0, GCA_AVX2 = 1, GCA_BASELINE = 2 };

int64_t gca_paths(void);
int64_t gca_training_bytes(void);
int64_t gca_inference_bytes(void);

enum { GCA_MOST_LAYERS = 64 };

/* Do the job in `memory`, 64-byte aligned floats of any content, and return how many of them it takes; with null,
 * only return that. */
int64_t gca_train(struct gca_training *job, int64_t path, float *memory);
int64_t gca_infer(const struct gca_inference *job, int64_t path, float *memory);

#endif
