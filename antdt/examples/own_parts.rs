//! `antdt` with a policy, a pace rule and a trainer of one's own; the nodes of a job are processes of this program too:
//! `cargo run -p antdt --example own_parts -- run --workload line --policy chief --pace-rule everyone`
use antdt::controller::{Decision, budget::RestartBudget, policy};
use antdt::core::{ClusterView, JobTime, Reason};
use antdt::workload::{Entry, Workload};
use antdt::{JobBuilder, agent::PerSample, monitor::rule};

fn chief(_: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
    let rest = view.global_batch_size + 1 - view.workers.len() as u32;
    let sizes = view.workers.iter().map(|node| (node.id, if node.chief { rest } else { 1 })).collect();
    let slow = view.workers.iter().all(|node| node.pace.is_straggler());
    let reasons = vec![Reason::Other("the chief takes what it can".to_owned())];
    Decision { batch_sizes: slow.then_some(sizes), reasons, ..Decision::default() }
}

fn line(sample: u64, slope: &[f32], gradient: &mut [f32]) -> f32 {
    let (x, error) = (sample % 7, (slope[0] - 3.0) * (sample % 7) as f32);
    gradient[0] += 2.0 * error * x as f32;
    error * error
}

fn main() -> std::process::ExitCode {
    JobBuilder::new()
        .policy(policy::Entry::new("chief", "all to one", |_| Ok(Box::new(policy::FromFn("chief", chief)))))
        .pace_rule(rule::Entry::new("everyone", "slow", |_| Ok(std::sync::Arc::new(rule::FromFn(|_| true)))))
        .trainer(Entry::new("line", "3 x", |_| Ok(Workload::made(|| PerSample::new(9_999, 1, line)))))
        .main()
}
