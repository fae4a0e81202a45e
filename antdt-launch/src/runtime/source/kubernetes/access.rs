//! What the API server refuses, in words that say what is to be done. Pure.

/// Verbs on pods that a job needs in its namespace.
pub(super) const VERBS: [&str; 5] = ["get", "list", "watch", "create", "delete"];

/// Returns the line for a permission that is missing.
pub(super) fn missing(verb: &str, resource: &str, namespace: &str, user: Option<&str>) -> String {
    let user = user.unwrap_or("the service account of this pod");
    format!(
        "Kubernetes does not let {user} {verb} {resource} in namespace {namespace}; \
         give it a Role with the verb {verb} on {resource}"
    )
}

/// Returns the line for what an API server says of a permission that is missing; `None` if it says something else.
///
/// ```
/// # #[cfg(feature = "kubernetes")] {
/// use antdt_launch::runtime::source::kubernetes::denied;
/// let says = r#"pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "lab""#;
/// let line = denied(says).unwrap();
/// assert!(line.starts_with("Kubernetes does not let ann create pods in namespace lab;"), "{line}");
/// # }
/// ```
pub fn denied(message: &str) -> Option<String> {
    let quoted = |after: &str| {
        let (_, rest) = message.split_once(after)?;
        Some(rest.split_once('"')?.0)
    };
    let (_, rest) = message.split_once("\" cannot ")?;
    let verb = rest.split_whitespace().next()?;
    let resource = quoted(" resource \"")?;
    let resource = match quoted("in API group \"").filter(|group| !group.is_empty()) {
        Some(group) => format!("{resource}.{group}"),
        None => resource.to_owned(),
    };
    let user = quoted("User \"")?;
    Some(match quoted("in the namespace \"") {
        Some(namespace) => missing(verb, &resource, namespace, Some(user)),
        None => format!(
            "Kubernetes does not let {user} {verb} {resource}; give it a ClusterRole with the verb {verb} on {resource}"
        ),
    })
}

/// Whether a request that was refused with this code and text is refused for good.
pub(super) fn is_final(code: u16, message: &str) -> bool {
    match code {
        // A quota has room again when others have ended.
        403 => !message.contains("exceeded quota"),
        400 | 401 | 404 | 422 => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permission_is_one_line_with_verb_and_resource() {
        for (says, expected) in [
            (
                r#"pods is forbidden: User "system:serviceaccount:lab:train" cannot list resource "pods" in API group "" in the namespace "lab""#,
                "Kubernetes does not let system:serviceaccount:lab:train list pods in namespace lab; give it a Role with the verb list on pods",
            ),
            (
                r#"jobs.batch is forbidden: User "ann" cannot create resource "jobs" in API group "batch" in the namespace "lab": RBAC: not found"#,
                "Kubernetes does not let ann create jobs.batch in namespace lab; give it a Role with the verb create on jobs.batch",
            ),
            (
                r#"nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope"#,
                "Kubernetes does not let ann list nodes; give it a ClusterRole with the verb list on nodes",
            ),
        ] {
            assert_eq!(denied(says).as_deref(), Some(expected));
        }
        for other in ["", "pods \"a\" is forbidden: exceeded quota: q", "\" cannot ", "User \"a\" cannot x"] {
            assert_eq!(denied(other), None);
        }
    }

    #[test]
    fn quota_and_what_passes_by_itself_are_tried_again() {
        assert!(!is_final(403, "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1"));
        assert!(is_final(403, "violates PodSecurity \"restricted:latest\""));
        for (code, expected) in [(422, true), (404, true), (409, false), (429, false), (500, false)] {
            assert_eq!(is_final(code, ""), expected, "{code}");
        }
    }
}
