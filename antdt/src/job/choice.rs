//! Settings that are one of a few names.

use std::fmt;

use antdt_core::InvalidValue;
use serde_json::{Value as Json, json};

use super::value::{Form, SettingValue, choose};

/// Declares an enum of a setting whose values are names.
macro_rules! choices {
    ($(
        $(#[$doc:meta])*
        $Name:ident { $( $(#[$variant_doc:meta])* $Variant:ident = $text:literal; )+ }
    )+) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Name { $( $(#[$variant_doc])* $Variant ),+ }

        impl $Name {
            /// All values of the setting, in the order of the help text.
            pub const ALL: &[Self] = &[ $( Self::$Variant ),+ ];

            /// Returns the name of the value in settings.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$Variant => $text ),+ }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl SettingValue for $Name {
            fn form() -> Form {
                Form::OneOf(Self::ALL.iter().map(|value| value.name().to_owned()).collect())
            }

            fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
                choose(flag, text, Self::ALL, Self::name)
            }

            fn to_json(&self) -> Json {
                json!(self.name())
            }
        }
    )+ };
}

choices! {
    /// How samples are divided among the workers.
    Sharding {
        /// Workers take shards from the ledger as they finish earlier ones.
        Dynamic = "dynamic";
        /// Every worker owns an equal share from the start: the baseline that AntDT is compared with.
        Static = "static";
    }

    /// Connections over which gradients and parameters go where a job is encrypted.
    DataPlane {
        /// Encrypted, as all others.
        Tls = "tls";
        /// Not encrypted.
        Plain = "plain";
    }

    /// How log lines are written.
    LogFormat {
        /// For people.
        Text = "text";
        /// One JSON object per line.
        Json = "json";
    }
}
