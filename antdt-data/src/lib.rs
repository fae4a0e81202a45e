#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod error;
pub mod rows;
pub mod splitter;

pub mod cuts;
pub mod layout;

pub mod source;

pub mod remote;

pub mod cache;

pub mod unpack;

pub mod kept;

pub mod files;
pub mod fixed;

pub mod delimited;

#[cfg(feature = "parquet")]
pub mod parquet;

pub mod reader;

#[cfg(feature = "parquet")]
pub use crate::parquet::{
    Column, ColumnCheck, ColumnRow, ColumnRows, Meaning, Parquet, ParquetField, Texts, Value, ValueTest,
    Values,
};
pub use cache::Cache;
pub use cuts::{Block, Cuts};
pub use delimited::{Delimited, Dialect, Fields, RowCheck, RowTest};
pub use error::{IndexError, OpenError, ReadError};
pub use files::Files;
pub use fixed::{FixedRecords, RecordShape, Tail};
pub use kept::{IndexOrigin, IndexPlace};
pub use layout::{DatasetLayout, FileRows};
pub use reader::Reader;
pub use rows::{ByteRows, Rows};
pub use source::{Container, Source, fingerprint};
pub use splitter::Splitter;
pub use unpack::UnpackNotice;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
