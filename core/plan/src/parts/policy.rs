//! Who may call a service, and which of its rules cannot work as written.

use starling_model::{
    ConfigEntryKey, ConfigKind, HeaderTest, IntentionPermission, PathMatch, Protocol, ServiceName, SourceDecision,
};
use starling_traffic::path::can_match;
use starling_traffic::{Policy, PolicyRule, check_regex};

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::planner::MeshSettings;
use crate::view::View;

/// Builds the policy of `service`.
pub(crate) fn build(view: &mut View<'_>, mesh: &MeshSettings, service: &ServiceName) -> (Policy, Vec<Diagnostic>) {
    let entries = view.intentions_covering(service);
    let policy = Policy::build(service, mesh.default_intention_action, entries);
    let protocol = view.protocol(service);
    if protocol.is_l7() {
        let diagnostics = policy.rules.iter().flat_map(unmatchable).collect();
        return (policy, diagnostics);
    }
    let (policy, closed) = policy.for_connections();
    let diagnostics = closed.into_iter().map(|rule| without_requests(&policy.rules[rule], service, protocol)).collect();
    (policy, diagnostics)
}

fn without_requests(rule: &PolicyRule, service: &ServiceName, protocol: Protocol) -> Diagnostic {
    Diagnostic {
        object: object(rule),
        field: format!("Sources[{}].Permissions", rule.source),
        reason: format!(
            "{service} speaks {}, where requests cannot be told apart, so connections from {} are denied",
            protocol.as_str(),
            rule.source
        ),
        fix: format!("give {service} a service-defaults entry with protocol http, http2 or grpc"),
        severity: Severity::Error,
    }
}

/// How to write the path of a permission so that it can match.
const NORMAL_FORM_FIX: &str = "write it as proxies see it: no query, no dot segments, no double or escaped slashes";

/// Permissions that match no request, whatever comes.
fn unmatchable(rule: &PolicyRule) -> Vec<Diagnostic> {
    let permissions = match &rule.decision {
        SourceDecision::Connection(_) => return Vec::new(),
        SourceDecision::Requests(permissions) => permissions,
    };
    let told = |(index, permission): (usize, &IntentionPermission)| {
        let field = format!("Sources[{}].Permissions[{index}].HTTP", rule.source);
        let (field, reason, fix) = if let Some(path) = permission.path.as_ref().filter(|path| !can_match(path)) {
            let text = match path {
                PathMatch::Exact(text) | PathMatch::Prefix(text) | PathMatch::Regex(text) => text,
            };
            (field + ".Path", format!("{text:?} is not in normal form, so it matches no request"), NORMAL_FORM_FIX)
        } else if let Some(expression) = broken_expression(permission) {
            let reason = format!("{expression:?} is no expression, so it allows nothing, and a denial goes without it");
            (field, reason, "correct the expression")
        } else {
            return None;
        };
        let fix = fix.to_owned();
        Some(Diagnostic { object: object(rule), field, reason, fix, severity: Severity::Error })
    };
    permissions.iter().enumerate().filter_map(told).collect()
}

fn broken_expression(permission: &IntentionPermission) -> Option<&str> {
    let path = match &permission.path {
        Some(PathMatch::Regex(expression)) => Some(expression),
        Some(PathMatch::Exact(_) | PathMatch::Prefix(_)) | None => None,
    };
    let headers = permission.headers.iter().filter_map(|header| match &header.test {
        HeaderTest::Regex(expression) => Some(expression),
        HeaderTest::Present
        | HeaderTest::Exact(_)
        | HeaderTest::Prefix(_)
        | HeaderTest::Suffix(_)
        | HeaderTest::Contains(_) => None,
    });
    path.into_iter().chain(headers).map(String::as_str).find(|expression| check_regex(expression).is_err())
}

fn object(rule: &PolicyRule) -> Object {
    Object::Config(ConfigEntryKey { kind: ConfigKind::ServiceIntentions, name: rule.written_for.to_string() })
}
