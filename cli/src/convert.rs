//! Between the names of the checkpoint machines and those of the store.

use ckpt_glue::names as glue;
use store::GenerationId;

pub(crate) fn to_store(generation: glue::GenerationId) -> GenerationId {
    GenerationId { life: generation.life, epoch: generation.epoch }
}

pub(crate) fn to_glue(generation: GenerationId) -> glue::GenerationId {
    glue::GenerationId { life: generation.life, epoch: generation.epoch }
}
