//! `antdt` with a sync mode, a data format, a launcher and a policy of one's own: `cargo run -p antdt --example own_program --
//! run --workload logistic --data visits.csv --format visits --sync every-third --launcher nice --policy calm`
use std::sync::Arc;

use antdt::JobBuilder;
use antdt::controller::policy::{self, Decision, FromFn};
use antdt::core::{Capabilities, Reason};
use antdt::launch::runtime::{self, process::ProcessLauncher};
use antdt::launch::{Changed, NodeSpec};
use antdt::workload::format::{Bucketing, Columns, FieldSink, Format, RowField, Schema};
use antdt_job::mode::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

#[derive(Debug)]
struct EveryThird(SyncMode);
impl Mode for EveryThird {
    fn name(&self) -> &'static str {
        "every-third"
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn head(&self) -> Box<dyn HeadHalf> {
        self.0.head()
    }
    fn worker(&self) -> Box<dyn WorkerHalf> {
        self.0.worker()
    }
}

struct Visits;
impl Columns for Visits {
    const NAME: &'static str = "visits";
    const SHAPE: &'static str = "label, age, shop, separated by commas";
    const SCHEMA: Schema = Schema { numeric: &[Bucketing::Exact], categorical: 1 };
    const FIRST_COLUMN: &'static str = "bought";
    const CHECK: &'static str = "visits 1";
    fn parse(column: usize, field: &RowField<'_>, sink: &mut impl FieldSink) -> Result<(), &'static str> {
        match column {
            0 => sink.label(field.label(b"1", b"0").ok_or("a label, 0 or 1")?),
            1 => sink.numeric(field.number().ok_or("an age")?),
            _ => sink.category(field.category()),
        }
        Ok(())
    }
}

fn nice(spec: NodeSpec) -> NodeSpec {
    let args = ["-n".into(), "5".into(), spec.program.into()].into_iter().chain(spec.args).collect();
    NodeSpec { program: "nice".into(), args, ..spec }
}

fn main() -> std::process::ExitCode {
    JobBuilder::new()
        .mode(Entry::new("every-third", "averages models every third step", |_| {
            Ok(SyncMode::new(EveryThird("local-sgd=3".parse()?)))
        }))
        .format(Format::of::<Visits>())
        .launcher(runtime::Entry::new("nice", "processes that let others come first", |_| {
            Ok(Arc::new(|outlets| Box::new(Changed::new(ProcessLauncher::new(outlets), nice))))
        }))
        .policy(policy::Entry::new("calm", "does nothing", |_| {
            Ok(Box::new(FromFn("calm", |_, _, _| Decision::nothing(Reason::Balanced))))
        }))
        .main()
}
