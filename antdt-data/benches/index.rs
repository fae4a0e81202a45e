//! How fast a row index is built, against `memchr` over the same bytes, and a Parquet file is sealed; and what random rows of a shard
//! cost, against the same rows in order.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Permutation, SampleRange, Seed};
use antdt_data::{ColumnCheck, Delimited, Dialect, IndexPlace, Parquet, Reader, Splitter, Value};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use parquet::data_type::Int64Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const LEN_BYTES: usize = 256 << 20;
const SHARD: u64 = 65_536;

/// Rows like those of a click log, about 230 bytes each.
fn write(path: &Path, quote: &str) {
    let mut file = std::io::BufWriter::new(File::create(path).expect("a file in a temporary folder"));
    let mut rng = Seed(1).rng();
    let mut written = 0;
    while written < LEN_BYTES {
        let mut row = format!("{}", rng.below(2));
        for _ in 0..13 {
            row.push_str(&format!("\t{}", rng.below(1000)));
        }
        for _ in 0..20 {
            row.push_str(&format!("\t{quote}{:08x}{quote}", rng.below(1 << 32)));
        }
        row.push('\n');
        file.write_all(row.as_bytes()).expect("there is room");
        written += row.len();
    }
    file.flush().expect("there is room");
}

fn index(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plain = folder.path().join("plain.tsv");
    let quoted = folder.path().join("quoted.tsv");
    write(&plain, "");
    write(&quoted, "\"");
    let len = |path: &Path| std::fs::metadata(path).expect("it was written").len();
    let mut group = criterion.benchmark_group("index");
    group.sample_size(10).measurement_time(Duration::from_secs(5));

    group.throughput(Throughput::Bytes(len(&plain)));
    let mut buffer = vec![0; 256 << 10];
    group.bench_function("memchr alone", |bencher| {
        bencher.iter(|| {
            let mut file = File::open(&plain).expect("it was written");
            let mut lines = 0;
            loop {
                let read = file.read(&mut buffer).expect("it is a file");
                if read == 0 {
                    break;
                }
                lines += memchr::memchr_iter(b'\n', &buffer[..read]).fold(0, |lines, at| lines + at % 2);
            }
            black_box(lines)
        });
    });
    group.bench_function("rows without quotes", |bencher| {
        bencher.iter(|| Delimited::open([&plain], Dialect::tsv(), &IndexPlace::Memory).expect("it has rows"));
    });
    let quotes = Dialect::tsv().with_quote(Some(b'"'));
    group.bench_function("quotes known, none there", |bencher| {
        bencher.iter(|| Delimited::open([&plain], quotes, &IndexPlace::Memory).expect("it has rows"));
    });
    group.throughput(Throughput::Bytes(len(&quoted)));
    group.bench_function("20 quoted fields a row", |bencher| {
        bencher.iter(|| Delimited::open([&quoted], quotes, &IndexPlace::Memory).expect("it has rows"));
    });
    group.finish();

    let mut group = criterion.benchmark_group("open");
    group.bench_function("index found", |bencher| {
        let open = || Delimited::open([&plain], Dialect::tsv(), &IndexPlace::Beside).expect("it has rows");
        open();
        bencher.iter(open);
    });
    group.finish();

    let data = Delimited::open([&plain], Dialect::tsv(), &IndexPlace::Memory).expect("it has rows");
    let mut group = criterion.benchmark_group("shard of 65,536 rows");
    group.throughput(Throughput::Elements(SHARD));
    let shard = SampleRange { start: SHARD * 3, end: SHARD * 4 };
    group.bench_function("read", |bencher| bencher.iter(|| data.read(shard).expect("it has them")));
    let mut reader = Reader::new(&data, NonZeroU64::new(256).expect("not zero"), 64 << 20);
    let in_order: Vec<u64> = (shard.start..shard.end).collect();
    let order = Permutation::new(Seed(7), SHARD);
    let permuted: Vec<u64> = (0..SHARD).map(|at| shard.start + order.at(at)).collect();
    for (name, samples) in [("rows in order", in_order), ("rows permuted", permuted)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut sum = 0;
                let each = |_, row: &[u8]| sum += row.iter().map(|byte| usize::from(*byte)).sum::<usize>();
                reader.read(&samples, each).expect("it has them");
                black_box(sum)
            });
        });
    }
    // Without a shard in memory: a read for each row, as from a store that knows nothing of shards.
    group.throughput(Throughput::Elements(1));
    let mut at = 0;
    group.bench_function("one row alone", |bencher| {
        bencher.iter(|| {
            at = (at + 40_503) % SHARD;
            let start = shard.start + at;
            data.read(SampleRange { start, end: start + 1 }).expect("it has it")
        });
    });
    group.finish();
}

/// Row groups of 40 columns of whole numbers, the first of which is a label.
fn write_parquet(path: &Path) {
    const ROWS: u64 = 100_000;
    let columns: String = (0..40).map(|at| format!("required int64 c{at};")).collect();
    let schema = parse_message_type(&format!("message rows {{ {columns} }}")).expect("a schema");
    let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
    let file = File::create(path).expect("a file in a temporary folder");
    let mut writer =
        SerializedFileWriter::new(file, Arc::new(schema), Arc::new(plain)).expect("a file is written");
    let mut rng = Seed(1).rng();
    for _ in 0..LEN_BYTES / (40 * 8 * 100_000) {
        let mut group = writer.next_row_group().expect("there is room");
        for column in 0..40 {
            let most = if column == 0 { 2 } else { 1 << 40 };
            let values: Vec<i64> = (0..ROWS).map(|_| rng.below(most).cast_signed()).collect();
            let mut column = group.next_column().expect("there is room").expect("40 columns");
            column.typed::<Int64Type>().write_batch(&values, None, None).expect("there is room");
            column.close().expect("there is room");
        }
        group.close().expect("there is room");
    }
    writer.close().expect("there is room");
}

fn seal(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.parquet");
    write_parquet(&path);
    let mut group = criterion.benchmark_group("seal");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    group.throughput(Throughput::Bytes(std::fs::metadata(&path).expect("it was written").len()));
    let open = || Parquet::open_all([&path]).expect("it has rows");
    group.bench_function("every byte", |bencher| {
        bencher.iter(|| open().sealed(&IndexPlace::Memory, ColumnCheck::NONE).expect("it is whole"));
    });
    let check = |_, value: Value<'_>| match value {
        Value::I64(0 | 1) => Ok(()),
        _ => Err("no label".to_owned()),
    };
    let check = ColumnCheck { name: "label", columns: &[0], check: &check };
    group.bench_function("every byte and a label of 40 columns", |bencher| {
        bencher.iter(|| open().sealed(&IndexPlace::Memory, check).expect("its labels are 0 and 1"));
    });
    group.finish();
}

criterion_group!(benches, index, seal);
criterion_main!(benches);
