//! The file with the secret by which the hosts of a job let each other in.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use antdt_core::InvalidValue;
use antdt_core::text::format_duration;

use crate::random;
use crate::run_dir::{self, Durability};

/// Name of the setting.
const SETTING: &str = "--rdzv-secret-file";

/// How often it is looked whether the file is there.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Bytes of a secret that is made.
const LEN: usize = 32;

/// Reads the secret.
///
/// # Errors
/// If the file cannot be read, is empty, or others than its owner can read it.
pub(crate) fn read(file: &Path) -> Result<String, InvalidValue> {
    let is_there = try_read(file)?;
    is_there.ok_or_else(|| invalid(file, "a file with the secret of the job, which the first host writes"))
}

/// Reads the secret, or makes one if there is no file.
///
/// # Errors
/// As [`read`], or if the file cannot be written.
pub(crate) fn read_or_make(file: &Path) -> Result<String, InvalidValue> {
    if let Some(secret) = try_read(file)? {
        return Ok(secret);
    }
    let made = random::hex::<LEN>().and_then(|secret| {
        run_dir::replace(file, 0o600, &format!("{secret}\n"), Durability::Disk)?;
        Ok(secret)
    });
    made.map_err(|error| invalid(file, &format!("in a folder that can be written to ({error})")))
}

/// Reads the secret once the first host has written it.
///
/// # Errors
/// As [`read`], or if there is no file after so long.
pub(crate) fn await_made(file: &Path, most: Duration, say: impl Fn(&str)) -> Result<String, InvalidValue> {
    let began = Instant::now();
    let mut is_said = false;
    loop {
        if let Some(secret) = try_read(file)? {
            return Ok(secret);
        }
        if began.elapsed() >= most {
            let waited = format_duration(most);
            let expected = format!(
                "a file that the first host writes if there is none; after {waited} (--rdzv-timeout) this host sees none: \
                 name one in a folder that all hosts share, or copy it to each"
            );
            return Err(invalid(file, &expected));
        }
        if !std::mem::replace(&mut is_said, true) {
            say(&format!("waiting for the secret in {}, which the first host writes", file.display()));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn invalid(file: &Path, expected: &str) -> InvalidValue {
    InvalidValue::new(SETTING, file.display(), expected)
}

/// Whether others than this user can read or write a file of this mode and owner. The system may have given it to a group of this user, to
/// be read: so Kubernetes mounts secrets for users that are not root.
const fn is_open(mode: u32, owner: u32, user: u32) -> bool {
    let is_mounted = owner == 0 && user != 0;
    mode & if is_mounted { 0o037 } else { 0o077 } != 0
}

/// `None` if there is no file.
fn try_read(file: &Path) -> Result<Option<String>, InvalidValue> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(invalid(file, &format!("a file that can be read ({error})"))),
    };
    if fs::metadata(file)
        .is_ok_and(|about| is_open(about.mode(), about.uid(), rustix::process::geteuid().as_raw()))
    {
        return Err(invalid(file, "a file that nobody else can read or write; chmod 600 makes it one"));
    }
    match text.trim() {
        "" => Err(invalid(file, "a file with a secret in it, which is empty")),
        secret => Ok(Some(secret.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secret_that_the_system_has_given_to_a_group_to_be_read_is_closed() {
        for (mode, owner, user, expected) in [
            (0o600, 7, 7, false),
            (0o400, 0, 0, false),
            (0o440, 0, 7, false),
            (0o440, 0, 0, true),
            (0o440, 7, 7, true),
            (0o460, 0, 7, true),
            (0o444, 0, 7, true),
        ] {
            assert_eq!(is_open(mode, owner, user), expected, "{mode:o} of {owner} for {user}");
        }
    }

    #[test]
    fn secret_is_made_once_and_read_by_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        assert!(read(&file).unwrap_err().to_string().contains("which the first host writes"));
        let made = read_or_make(&file).unwrap();
        assert_eq!(made.len(), 2 * LEN);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_make(&file).unwrap(), made);
        assert_eq!(await_made(&file, Duration::ZERO, |_| panic!("it is there")).unwrap(), made);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("chmod 600"));
        assert!(read_or_make(&folder.path().join("none/secret")).is_err());
    }

    #[test]
    fn host_waits_for_the_secret_and_says_so_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let said = std::cell::RefCell::new(Vec::new());
        let say = |line: &str| {
            said.borrow_mut().push(line.to_owned());
            read_or_make(&file).unwrap();
        };
        let found = await_made(&file, Duration::from_secs(60), say).unwrap();
        assert_eq!((found, said.borrow().len()), (read(&file).unwrap(), 1));
        let never = folder.path().join("never");
        let error = await_made(&never, Duration::ZERO, |_| {}).unwrap_err().to_string();
        assert!(error.contains("in a folder that all hosts share"), "{error}");
    }
}
