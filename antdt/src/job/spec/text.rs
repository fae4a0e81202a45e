//! Text forms: the serde glue for types that know none.

use antdt_core::{InvalidValue, SyncMode};

pub use antdt_core::text::{format_duration, nearest, parse_duration};

pub(super) use antdt_core::text::named_duration;

pub(super) fn parse_sync_mode(text: &str) -> Result<SyncMode, InvalidValue> {
    super::choose("--sync", text, &SyncMode::ALL, SyncMode::name)
}

/// [`SyncMode`] by name.
pub(super) mod sync_mode {
    use antdt_core::SyncMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(mode: &SyncMode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SyncMode, D::Error> {
        super::parse_sync_mode(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A duration with its unit.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A value by its text form.
pub(super) mod displayed {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.to_string().serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// An optional value by its text form.
pub(super) mod option {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Option::<String>::deserialize(from)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A list of values by their text forms.
pub(super) mod list {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Vec::<String>::deserialize(from)?.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}
