//! [`SettingSet`]: the settings of a part of a [registry](crate::registry), written once as a struct.

use std::collections::BTreeMap;

use crate::error::InvalidValue;
use crate::registry::{Setting, Settings};

/// The settings of a part as a struct with a default; [`settings!`](crate::settings!) declares one.
pub trait SettingSet: Default {
    /// Reads the settings that a job gives; those that it does not give stay as they are in `self`.
    ///
    /// # Errors
    /// If a value cannot be parsed or is out of bounds; the error names the table and the key.
    fn read_over(self, settings: &Settings<'_>) -> Result<Self, InvalidValue>;

    /// Reads the settings that a job gives; those that it does not give have their defaults.
    ///
    /// # Errors
    /// As [`read_over`](Self::read_over).
    fn read(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        Self::default().read_over(settings)
    }

    /// Returns every setting with its value, in the order in which they are listed.
    fn texts(&self) -> Vec<Setting>;

    /// Returns every setting with its default.
    fn defaults() -> Vec<Setting> {
        Self::default().texts()
    }

    /// Returns the text of each setting by its name, from which [`Settings::read`] reads the same settings again.
    fn values(&self) -> BTreeMap<String, String> {
        self.texts().into_iter().map(|setting| (setting.name.to_owned(), setting.default)).collect()
    }
}

/// Declares the settings of a part: a struct with its [`Default`] and its [`SettingSet`].
///
/// A field is written as `name: Type = default, about, expected, if |value| fits, else bounds;`, where `about`
/// is the setting's line in the help text, and `expected` says what an unreadable value must be. Both parts of
/// the bounds may be left out; without `else`, a value out of bounds is refused with `expected`. The key of a
/// setting is the name of its field with `-` for `_`. A type is one word; it is read by its
/// [`FromStr`](std::str::FromStr) and written by its [`Display`](std::fmt::Display), and [`Duration`](std::time::Duration) with its unit.
///
/// ```
/// use std::time::Duration;
/// use antdt_core::registry::{Entry, SettingSet, Registry};
///
/// antdt_core::settings! {
///     /// Settings of a pause.
///     #[derive(Debug, Clone, Copy, PartialEq)]
///     pub struct PauseSettings {
///         /// Number of pauses. Default 2.
///         pub count_max: u32 = 2, "most pauses", "a whole number of at least 1", if |count| count > 0;
///         /// Length of a pause. Default 5 s.
///         pub length: Duration = Duration::from_secs(5), "length of a pause";
///     }
/// }
///
/// static PAUSES: Registry<Entry<PauseSettings>> =
///     Registry::new("pause", &[Entry::with::<PauseSettings>("short", "is short", |settings| settings.read())]);
///
/// let given = [("length".to_owned(), "1s".to_owned())].into();
/// let pause = PAUSES.build("short", &given)?;
/// assert_eq!(pause, PauseSettings { count_max: 2, length: Duration::from_secs(1) });
/// assert_eq!(pause.values()["count-max"], "2");
/// let refused = PAUSES.build("short", &[("count-max".to_owned(), "0".to_owned())].into()).unwrap_err();
/// assert_eq!(refused.to_string(), "[pause.short] count-max = 0: must be a whole number of at least 1");
/// # Ok::<(), antdt_core::registry::BuildError>(())
/// ```
#[macro_export]
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident {
            $(
                $(#[$field_attribute:meta])*
                $field_visible:vis $field:ident: $type:tt = $default:expr, $about:expr
                $(, $expected:expr $(, if |$value:ident| $fits:expr $(, else $bounds:expr)?)?)?;
            )*
        }
    ) => {
        $(#[$attribute])*
        $visible struct $name {
            $($(#[$field_attribute])* $field_visible $field: $type,)*
        }

        impl ::core::default::Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::registry::SettingSet for $name {
            fn read_over(
                self,
                settings: &$crate::registry::Settings<'_>,
            ) -> ::core::result::Result<Self, $crate::InvalidValue> {
                $(
                    let name = $crate::settings!(@name $field);
                    let $field = $crate::settings!(@read $type, settings, name, self.$field $(, $expected)?);
                    $($(
                        let $value = ::core::clone::Clone::clone(&$field);
                        if !($fits) {
                            let bounds = $crate::settings!(@first $($bounds,)? $expected);
                            return ::core::result::Result::Err(settings.refuse(name, &$field, bounds));
                        }
                    )?)?
                )*
                ::core::result::Result::Ok(Self { $($field,)* })
            }

            fn texts(&self) -> ::std::vec::Vec<$crate::registry::Setting> {
                ::std::vec![
                    $($crate::settings!(@text $type, $crate::settings!(@name $field), self.$field, $about),)*
                ]
            }
        }
    };
    (@name $field:ident) => {{
        const KEY: [u8; ::core::stringify!($field).len()] = $crate::registry::key(::core::stringify!($field));
        const NAME: &str = match ::core::str::from_utf8(&KEY) {
            ::core::result::Result::Ok(name) => name,
            ::core::result::Result::Err(_) => ::core::panic!("a name of a field is text"),
        };
        NAME
    }};
    (@first $first:expr $(, $other:expr)?) => { $first };
    (@read Duration, $settings:ident, $name:ident, $default:expr $(, $expected:expr)?) => {
        $settings.duration($name, $default)?
    };
    (@read $type:tt, $settings:ident, $name:ident, $default:expr, $expected:expr) => {
        $settings.value::<$type>($name, $default, $expected)?
    };
    (@text Duration, $name:expr, $value:expr, $about:expr) => {
        $crate::registry::Setting::time($name, $value, $about)
    };
    (@text $type:tt, $name:expr, $value:expr, $about:expr) => {
        $crate::registry::Setting::new($name, &$value, $about)
    };
}

/// Returns the key of a setting, the name of its field with `-` for `_`, as bytes. For [`settings!`](crate::settings!) only.
#[doc(hidden)]
pub const fn key<const LEN: usize>(field: &str) -> [u8; LEN] {
    let (mut key, field) = ([b'-'; LEN], field.as_bytes());
    let mut at = 0;
    while at < LEN {
        if field[at] != b'_' {
            key[at] = field[at];
        }
        at += 1;
    }
    key
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::registry::{Entry, Registry};

    settings! {
        /// Settings of all forms.
        #[derive(Debug, Clone, PartialEq)]
        struct Forms {
            plain: bool = true, "needs no bounds", "true or false";
            in_bounds: f64 = 0.5, "has bounds", "a number", if |part| part > 0.0 && part < 1.0, else "above 0 and below 1";
            one_text: u32 = 3, "has one text for both", "1 to 9", if |count| (1..=9).contains(&count);
            long_time: Duration = Duration::from_secs(90), "has a unit";
            word: String = "a".to_owned(), "is refused by a text that is made", "a word",
                if |word| !word.is_empty(), else &format!("longer than `{word}`");
        }
    }

    const SHIPPED: &[Entry<Forms>] =
        &[Entry::with::<Forms>("forms", "has all forms", |settings| settings.read())];

    fn built(given: &[(&str, &str)]) -> Result<Forms, String> {
        let texts = given.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        Registry::new("test", SHIPPED).build("forms", &texts).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_listed_in_order_with_keys_and_defaults() {
        let listed: Vec<(&str, String)> =
            Forms::defaults().into_iter().map(|setting| (setting.name, setting.default)).collect();
        let expected = [
            ("plain", "true"),
            ("in-bounds", "0.5"),
            ("one-text", "3"),
            ("long-time", "1m30s"),
            ("word", "a"),
        ];
        assert_eq!(listed, expected.map(|(name, text)| (name, text.to_owned())));
        assert_eq!(built(&[]), Ok(Forms::default()));
    }

    #[test]
    fn values_are_read_back_as_they_were_written() {
        let forms =
            built(&[("plain", "false"), ("in-bounds", "0.25"), ("long-time", "2s"), ("word", "b")]).unwrap();
        let expected = Forms {
            plain: false,
            in_bounds: 0.25,
            one_text: 3,
            long_time: Duration::from_secs(2),
            word: "b".to_owned(),
        };
        assert_eq!(forms, expected);
        let values = forms.values();
        let given: Vec<(&str, &str)> = values.iter().map(|(key, text)| (&key[..], &text[..])).collect();
        assert_eq!(built(&given), Ok(forms));
    }

    #[test]
    fn a_refusal_names_table_key_and_value_and_the_legal_values() {
        for (key, text, refusal) in [
            ("plain", "yes", "[test.forms] plain = yes: must be true or false"),
            ("in-bounds", "x", "[test.forms] in-bounds = x: must be a number"),
            ("in-bounds", "1", "[test.forms] in-bounds = 1: must be above 0 and below 1"),
            ("in-bounds", "NaN", "[test.forms] in-bounds = NaN: must be above 0 and below 1"),
            ("one-text", "0", "[test.forms] one-text = 0: must be 1 to 9"),
            ("one-text", "-1", "[test.forms] one-text = -1: must be 1 to 9"),
            ("word", "", "[test.forms] word = ``: must be longer than ``"),
        ] {
            assert_eq!(built(&[(key, text)]), Err(refusal.to_owned()));
        }
        assert!(built(&[("long-time", "2")]).unwrap_err().starts_with("[test.forms] long-time = 2: must be"));
    }
}
