//! How the command finds a job whose master has ended, by what that master left.

use std::collections::BTreeMap;
use std::path::Path;

use super::{HeadState, JobFile, Orphaned, read};
use crate::job::JobSpec;
use crate::lead::Elector;
use crate::master::{Fleet, JobError};
use crate::run_dir::{self, JOB, MasterFile, RunDir, RunDirError};

impl Orphaned {
    /// The settings of the job.
    pub(crate) const fn spec(&self) -> &JobSpec {
        &self.file.spec
    }

    /// Finds the job that the settings resume, if its nodes live. From then on no other master can take it over.
    ///
    /// # Errors
    /// If its master lives, a file is damaged, or the settings ask for another job.
    pub(crate) fn find(spec: &JobSpec, fleet: &Fleet) -> Result<Option<Self>, JobError> {
        let Some(dir) = &spec.resume else { return Ok(None) };
        let dir = run_dir::below(dir);
        if !dir.join(JOB).exists() {
            return Ok(None);
        }
        let elector = elector(&dir)?;
        let Some(found) = Self::of(RunDir::open(&dir, true, &elector)?, fleet)? else { return Ok(None) };
        if found.alive == 0 {
            return Ok(None);
        }
        let changed = changed(spec, &found.file.spec);
        if !changed.is_empty() {
            let (alive, changed) = (found.alive, changed.join(", "));
            return Err(RunDirError::Orphans { path: dir, alive, changed }.into());
        }
        found.enter()?;
        Ok(Some(found))
    }

    /// Waits until the master of the job in a run directory, or in a report folder with one, has died, whether or not a node of
    /// it lives; from then on no other master can take the job over. `None` if the job ended in order. `waiting` is called once,
    /// before the wait.
    ///
    /// The caller decides when it ends: dropping it leaves everything as it is.
    ///
    /// # Errors
    /// If no job runs there, it cannot be taken over, or a file is damaged.
    pub(crate) async fn wait(
        dir: &Path,
        fleet: &Fleet,
        waiting: impl FnOnce(&MasterFile),
    ) -> Result<Option<Self>, JobError> {
        let dir = run_dir::below(dir);
        let mut waiting = Some(waiting);
        let mut found = None;
        loop {
            if !dir.join(JOB).exists() {
                return match (&waiting, run_dir::read_master(&dir)) {
                    // A master that ends removes this file first and its address last.
                    (None, _) => Ok(None),
                    (Some(_), Ok(master)) => {
                        Err(RunDirError::NoSuccessor { path: dir, job: master.job }.into())
                    }
                    (Some(_), Err(error)) => Err(error.into()),
                };
            }
            let elector = match &found {
                Some(elector) => elector,
                None => found.insert(elector(&dir)?),
            };
            match RunDir::open(&dir, true, elector) {
                // A master that waits already goes on while none can be elected.
                Err(RunDirError::Election { why }) if waiting.is_none() => {
                    tracing::warn!(why, "nobody can be elected");
                }
                // Its master may be about to identify itself, or to end.
                Err(RunDirError::Taken { .. }) => {
                    if let Ok(master) = run_dir::read_master(&dir)
                        && let Some(waiting) = waiting.take()
                    {
                        waiting(&master);
                    }
                }
                Err(error) => return Err(error.into()),
                Ok(lock) => match Self::of(lock, fleet)? {
                    Some(found) => {
                        found.enter()?;
                        return Ok(Some(found));
                    }
                    // It died before there was anything to take over.
                    None => return Ok(None),
                },
            }
            tokio::time::sleep(elector.pause()).await;
        }
    }

    /// Reads what is in a directory; `None` if something is missing.
    fn of(dir: RunDir, fleet: &Fleet) -> Result<Option<Self>, JobError> {
        let path = dir.path();
        let (Some(file), Some(state)) =
            (read::<JobFile>(&path.join(JOB))?, HeadState::read(&dir, &*fleet.launcher)?)
        else {
            return Ok(None);
        };
        let (master, token) = run_dir::read(path)?;
        let alive = state.alive(&*fleet.launcher);
        Ok(Some(Self { dir, file, state, token, address: master.address, alive }))
    }

    /// Goes to the folder in which paths of the settings begin.
    fn enter(&self) -> Result<(), JobError> {
        let folder = &self.file.folder;
        if folder.as_os_str().is_empty() {
            return Ok(());
        }
        std::env::set_current_dir(folder)
            .map_err(|source| RunDirError::File { path: folder.clone(), source }.into())
    }
}

/// The authority that says which master leads the job in a run directory.
fn elector(dir: &Path) -> Result<Elector, RunDirError> {
    let file = read::<JobFile>(&dir.join(JOB))?;
    Ok(file.map_or(Elector::Lock, |file| Elector::new(file.spec.elect.as_ref(), &file.job)))
}

/// Settings that the user gave and that are not those of the job.
fn changed(given: &JobSpec, job: &JobSpec) -> Vec<String> {
    /// Of the master alone, or of the start.
    const FREE: [&str; 9] = [
        "resume",
        "force",
        "job-id",
        "checkpoint-dir",
        "run-dir",
        "report-dir",
        "quiet",
        "log",
        "log-format",
    ];
    let (plain, job): (BTreeMap<_, _>, BTreeMap<_, _>) = (JobSpec::default().texts(), job.texts());
    let differs = |(name, text): &(String, String)| {
        !FREE.contains(&name.as_str()) && plain.get(name) != Some(text) && job.get(name) != Some(text)
    };
    given.texts().into_iter().filter(differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_given_anew_must_be_as_it_was() {
        let job = JobSpec { workers: 3, seed: 4, ..JobSpec::default() };
        assert_eq!(changed(&JobSpec::default(), &job), Vec::<String>::new(), "nothing was given");
        assert_eq!(changed(&JobSpec { quiet: true, ..job.clone() }, &job), Vec::<String>::new());
        assert_eq!(changed(&JobSpec { seed: 5, ..job.clone() }, &job), ["seed"]);
    }
}
