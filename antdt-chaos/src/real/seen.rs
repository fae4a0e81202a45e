//! What a driver hears of the job: its master is asked, as any operator would ask it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt::diagnosis;
use antdt::remote::{self, RemoteError, RemoteJob};

/// Pause between two looks at the job.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// How long one question to the master may take.
const ASK: Duration = Duration::from_secs(2);

/// What the master says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Whether all workers have trained together.
    pub(super) begun: bool,
    /// Changes whenever samples are trained, or taken back.
    pub(super) trained: u64,
}

/// What `antdt status` and `antdt status --diagnose` say of the job, while it can still be asked.
pub(super) async fn status(run_dir: &Path) -> String {
    let asked = async {
        let job = RemoteJob::find(Some(run_dir))?;
        Ok::<_, RemoteError>(
            remote::render(&job.describe().await?) + &diagnosis::render(&job.diagnose().await?),
        )
    };
    match tokio::time::timeout(ASK, asked).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => format!("its master does not say more: {error}"),
        Err(_) => format!("its master does not answer within {} s", ASK.as_secs()),
    }
}

/// Asks the master again and again where the job stands.
pub(super) async fn ask(run_dir: PathBuf, workers: u32, seen: Arc<Mutex<Seen>>) {
    loop {
        let asked = async { RemoteJob::find(Some(&run_dir)).ok()?.describe().await.ok() };
        if let Ok(Some(reply)) = tokio::time::timeout(ASK, asked).await {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.begun |= reply.members == workers && reply.steps > 0;
            seen.trained = reply.counts.map_or(reply.steps, |counts| counts.acked);
        }
        tokio::time::sleep(LOOK * 5).await;
    }
}
