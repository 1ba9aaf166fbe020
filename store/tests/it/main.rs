//! Images, records and generations: one binary, a module for each behaviour.

mod base;
mod common;
mod crash;
mod delta;
mod encrypted;
mod generations;
mod golden;
mod group;
mod image;
mod image_format_document;
mod nodes;
mod outside;
mod packets;
mod protect;
mod protect_crash;
mod record_repair;
mod records;
mod relayout;
mod roots;
mod sabotage;
mod scrub;
mod series;
#[path = "../../../tests/skipped.rs"]
mod skipped;
mod storage;
mod unreadable;
