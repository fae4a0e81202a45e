//! The lead that etcd gives, for as long as its lease is renewed.
//!
//! etcd keeps two keys below the job's name. `leader` exists as long as the lease of the leading master; the master that creates it
//! leads.
//! `count` grows by one in the same transaction, so that no two leads have the same number.
//!
//! The lease is renewed every sixth of its time. This process counts it as over after three quarters, from the moment at which
//! it *asked* for the last renewal: etcd ends it a whole time after it has heard that, by a clock that may go a little faster.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use antdt_rt::CancellationToken;
use etcd_client::{Client, Compare, CompareOp, ConnectOptions, Error, PutOptions, Txn, TxnOp};

use super::{Lead, lost};
use crate::job::EtcdSpec;

/// Time that a lease is asked for; etcd gives no less than 1.5 of its election timeouts, in whole seconds.
const LEASE_S: i64 = 1;

/// Bound on a call, and on the wait for the first answers.
const CALL_LIMIT: Duration = Duration::from_secs(2);
const FIRST_LIMIT: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct EtcdLead {
    number: u64,
    valid_until: Arc<Mutex<Instant>>,
    stop: CancellationToken,
    keeper: Option<JoinHandle<()>>,
}

impl Lead for EtcdLead {
    fn holds(&self) -> bool {
        Instant::now() < *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> Option<u64> {
        Some(self.number)
    }
}

impl Drop for EtcdLead {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(keeper) = self.keeper.take() {
            // It has a limit of its own.
            let _ = keeper.join();
        }
    }
}

/// A lead that was won.
struct Won {
    client: Client,
    lease: i64,
    time: Duration,
    number: u64,
    valid_until: Instant,
}

/// When a lease that was asked for then counts as over.
fn end_of(asked: Instant, time: Duration) -> Instant {
    asked + time * 3 / 4
}

/// Tries to lead a job; `None` if another process does.
pub(super) fn try_lead(etcd: &EtcdSpec, job: &str) -> Result<Option<EtcdLead>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("etcd at {etcd} does not answer ({error})");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let (told, tells) = mpsc::sync_channel(1);
    let stop = CancellationToken::new();
    let (name, stopped, place) = (job.to_owned(), stop.clone(), etcd.clone());
    // A thread of its own: the caller may be within a runtime, and what renews a lease waits for nothing else.
    let keeper = thread::Builder::new().name("antdt-lead".to_owned()).spawn(move || {
        let won = match runtime.block_on(campaign(&place, &name)) {
            Ok(Some(won)) => won,
            Ok(None) => return drop(told.send(Ok(None))),
            Err(error) => return drop(told.send(Err(error.to_string()))),
        };
        let valid_until = Arc::new(Mutex::new(won.valid_until));
        if told.send(Ok(Some((won.number, Arc::clone(&valid_until))))).is_ok() {
            runtime.block_on(keep(won, &valid_until, &stopped));
        }
    });
    let keeper = keeper.map_err(|error| failed(&error))?;
    match tells.recv_timeout(FIRST_LIMIT) {
        Ok(Ok(Some((number, valid_until)))) => {
            Ok(Some(EtcdLead { number, valid_until, stop, keeper: Some(keeper) }))
        }
        Ok(Ok(None)) => Ok(None),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(failed(&"no answer in time")),
    }
}

async fn campaign(etcd: &EtcdSpec, job: &str) -> Result<Option<Won>, Error> {
    let options = ConnectOptions::new().with_connect_timeout(CALL_LIMIT).with_timeout(CALL_LIMIT);
    let mut client = Client::connect(&etcd.endpoints, Some(options)).await?;
    let key = |name: &str| format!("{}{job}/{name}", etcd.prefix);
    let (leader, count) = (key("leader"), key("count"));
    if !client.get(leader.clone(), None).await?.kvs().is_empty() {
        return Ok(None);
    }
    let known = client.get(count.clone(), None).await?;
    let (before, revision) = match known.kvs().first() {
        Some(known) => (known.value_str()?.parse().unwrap_or(0), known.mod_revision()),
        None => (0_u64, 0),
    };
    let asked = Instant::now();
    let lease = client.lease_grant(LEASE_S, None).await?;
    let time = Duration::from_secs(u64::try_from(lease.ttl()).unwrap_or(0));
    let number = before + 1;
    let me = format!("process {} on {}", std::process::id(), crate::host::name());
    let wins = Txn::new()
        .when([
            Compare::create_revision(leader.clone(), CompareOp::Equal, 0),
            Compare::mod_revision(count.clone(), CompareOp::Equal, revision),
        ])
        .and_then([
            TxnOp::put(leader, me, Some(PutOptions::new().with_lease(lease.id()))),
            TxnOp::put(count, number.to_string(), None),
        ]);
    let (lease, valid_until) = (lease.id(), end_of(asked, time));
    if !client.txn(wins).await?.succeeded() {
        client.lease_revoke(lease).await?;
        return Ok(None);
    }
    Ok(Some(Won { client, lease, time, number, valid_until }))
}

/// Renews the lease until the lead is given up; ends the process if it cannot be renewed in time.
async fn keep(won: Won, valid_until: &Mutex<Instant>, stop: &CancellationToken) {
    let Won { mut client, lease, time, .. } = won;
    loop {
        tokio::select! {
            () = stop.cancelled() => {
                // Another one need not wait for the end of the lease. If this fails, it does.
                let _ = tokio::time::timeout(CALL_LIMIT, client.lease_revoke(lease)).await;
                return;
            }
            () = tokio::time::sleep(time / 6) => {}
        }
        let until = *valid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = Instant::now();
        let left = until.saturating_duration_since(asked);
        match tokio::time::timeout(left, client.lease_keep_alive(lease)).await {
            Ok(Ok(_)) if Instant::now() < until => {
                *valid_until.lock().unwrap_or_else(PoisonError::into_inner) = end_of(asked, time);
            }
            Ok(Err(error)) if Instant::now() < until => {
                tracing::warn!(%error, "etcd did not renew the lead of this master; it is asked again");
            }
            _ => lost(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_counts_as_over_before_its_lease_ends() {
        let (asked, time) = (Instant::now(), Duration::from_secs(2));
        assert!(end_of(asked, time) < asked + time && end_of(asked, time) > asked + time / 6 * 3);
    }
}
