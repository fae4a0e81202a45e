//! Conversion of errors to gRPC status codes and back, with one code for each reaction of the caller.
//!
//! | code | error | the caller |
//! |---|---|---|
//! | `FAILED_PRECONDITION` | [`SourceError::Reregister`] | registers and presents its leases |
//! | `PERMISSION_DENIED` | [`SourceError::Fenced`] | exits |
//! | `DATA_LOSS` | [`SourceError::DataLost`] | exits |
//! | `INVALID_ARGUMENT`; `NOT_FOUND` for an unknown data set | [`SourceError::Rejected`] | aborts |
//! | `UNAVAILABLE` and all that a broken connection can give | [`SourceError::Unavailable`] | tries again |

use std::time::Duration;

use tonic::{Code, Status};

use crate::error::SourceError;

pub(super) fn to_status(error: SourceError) -> Status {
    match error {
        SourceError::Unavailable { why, .. } => Status::unavailable(why),
        SourceError::Reregister(why) => Status::failed_precondition(why),
        SourceError::Fenced(why) => Status::permission_denied(why),
        SourceError::DataLost(why) => Status::data_loss(why),
        SourceError::Rejected(why) => Status::invalid_argument(why),
    }
}

pub(super) fn from_status(status: &Status) -> SourceError {
    let why = status.message().to_owned();
    match status.code() {
        Code::FailedPrecondition => SourceError::Reregister(why),
        Code::PermissionDenied => SourceError::Fenced(why),
        Code::DataLoss => SourceError::DataLost(why),
        // These say that the request itself cannot be served; a proxy or an older service may send them too.
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => SourceError::Rejected(format!("{}: {why}", status.code())),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => {
            SourceError::Unavailable { why: format!("{}: {why}", status.code()), after: Duration::ZERO }
        }
    }
}
