//! How a job in a cluster may be called. Pure.

use antdt_core::InvalidValue;

/// Refuses a name of a job that is no label of DNS, or too long for the pods that are named after it.
///
/// # Errors
/// If it is one; `field` is the setting that has it.
pub fn check_name(field: &str, name: &str) -> Result<(), InvalidValue> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = name.len() <= NAME_MAX
        && name.chars().all(|c| is_word(c) || c == '-')
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(is_word);
    if is_label {
        return Ok(());
    }
    let expected =
        format!("at most {NAME_MAX} lower-case letters, digits and dashes, a letter first, such as train-7");
    Err(InvalidValue::new(field, if name.is_empty() { "(nothing)" } else { name }, expected))
}

/// Longest name of a job, in bytes: a label has 63, and a pod's name also has its host and a number.
const NAME_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_job_is_a_label() {
        for name in ["train", "a", "train-7"] {
            assert_eq!(check_name("--name", name), Ok(()));
        }
        for name in ["", "Train", "7a", "a-", "a.b", "a_b", &"a".repeat(41)] {
            let error = check_name("--name", name).unwrap_err().to_string();
            assert!(error.starts_with("--name = ") && error.contains("lower-case"), "{error}");
        }
    }
}
