//! From a service's name to who is called: redirects and default subsets followed, splits of splits flattened.

use starling_model::{
    ConfigEntryKey, ConfigKind, HeaderEdits, Percent, ServiceName, ServiceResolver, ServiceSplitter, ServiceTarget,
    SubsetName,
};
use starling_traffic::WEIGHT_TOTAL;

use crate::diagnostic::{Diagnostic, Object, Severity};
use crate::plan::Target;
use crate::view::View;

/// Redirects followed one after the other: more is nobody's intention.
const REDIRECTS_MAX: usize = 16;

/// Splits inside one another; their shares are exact up to here.
const SPLIT_DEPTH_MAX: usize = 4;

/// Targets of one rule: Envoy reads the weights of each of them for each request.
const TARGETS_MAX: usize = 1_024;

/// What everything is, in the shares of the innermost split.
const WHOLE: u64 = (Percent::ALL.as_u64()).pow(4);

/// Who gets what share of requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Share {
    pub target: Target,
    /// Of [`WEIGHT_TOTAL`].
    pub weight: u32,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
}

/// A share in the making.
struct Part {
    target: Target,
    /// Of [`WHOLE`].
    share: u64,
    edits: (HeaderEdits, HeaderEdits),
}

/// Follows what is written of a service to who is called.
pub(crate) struct Chain<'v, 'a> {
    pub view: &'v mut View<'a>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Chain<'_, '_> {
    /// Who is called where `service`, or a subset of it, is named.
    pub(crate) fn resolve(&mut self, service: &ServiceName, subset: Option<&SubsetName>) -> Target {
        let mut here = Target { service: service.clone(), subset: subset.cloned() };
        let mut seen = vec![service.clone()];
        while let Some(resolver) = self.view.service_resolver(&here.service) {
            let Some(redirect) = &resolver.redirect else {
                here.subset = here.subset.or_else(|| resolver.default_subset.clone());
                return here;
            };
            let next = redirect.service.clone().unwrap_or_else(|| here.service.clone());
            if next == here.service {
                here.subset = redirect.subset.clone();
                return here;
            }
            if seen.contains(&next) || seen.len() > REDIRECTS_MAX {
                self.diagnostics.push(goes_round(ConfigKind::ServiceResolver, "Redirect", &here.service, &seen));
                return here;
            }
            seen.push(next.clone());
            here = Target { service: next, subset: redirect.subset.clone() };
        }
        here
    }

    /// Who is called, in this order, where nobody of `target` is in health.
    pub(crate) fn failover(&mut self, target: &Target) -> Vec<Target> {
        let Some(resolver) = self.view.service_resolver(&target.service) else { return Vec::new() };
        let mut targets: Vec<Target> = Vec::new();
        for ServiceTarget { service, subset } in resolver.failover.of(target.subset.as_ref()) {
            let next = match service {
                Some(service) if *service != target.service => self.resolve(service, subset.as_ref()),
                _ => Target { service: target.service.clone(), subset: subset.clone() },
            };
            if next != *target && !targets.contains(&next) {
                targets.push(next);
            }
        }
        targets
    }

    /// Who is called where `service` is named and no subset, and with which share.
    pub(crate) fn split(&mut self, service: &ServiceName) -> Vec<Share> {
        let mut parts = Vec::new();
        let whole = Part {
            target: Target { service: service.clone(), subset: None },
            share: WHOLE,
            edits: (HeaderEdits::default(), HeaderEdits::default()),
        };
        self.divide(whole, &mut Vec::new(), &mut parts);
        weigh(parts)
    }

    /// Puts what `part` comes to into `parts`; `path` is the splitters on the way to it.
    fn divide(&mut self, part: Part, path: &mut Vec<ServiceName>, parts: &mut Vec<Part>) {
        let service = part.target.service.clone();
        let Some(splitter) = self.view.service_splitter(&service).filter(|_| part.target.subset.is_none()) else {
            let target = self.resolve(&service, part.target.subset.as_ref());
            parts.push(Part { target, ..part });
            return;
        };
        if path.contains(&service) || path.len() == SPLIT_DEPTH_MAX || parts.len() >= TARGETS_MAX {
            // That a splitter names its own service is no round: it means the service's instances.
            if path.last() != Some(&service) {
                self.diagnostics.push(goes_round(ConfigKind::ServiceSplitter, "Splits", &service, path));
            }
            let target = self.resolve(&service, None);
            parts.push(Part { target, ..part });
            return;
        }
        path.push(service);
        self.divide_by(splitter, &part, path, parts);
        path.pop();
    }

    fn divide_by(
        &mut self,
        splitter: &ServiceSplitter,
        part: &Part,
        path: &mut Vec<ServiceName>,
        parts: &mut Vec<Part>,
    ) {
        for split in splitter.splits.as_slice().iter().filter(|split| split.weight > Percent::NONE) {
            let service = split.service.as_ref().unwrap_or(&splitter.service);
            let inner = Part {
                target: Target { service: service.clone(), subset: split.subset.clone() },
                share: part.share / Percent::ALL.as_u64() * split.weight.as_u64(),
                edits: (both(&part.edits.0, &split.request_headers), both(&part.edits.1, &split.response_headers)),
            };
            self.divide(inner, path, parts);
        }
    }

    /// The resolver of a service.
    pub(crate) fn resolver(&mut self, service: &ServiceName) -> Option<&ServiceResolver> {
        self.view.service_resolver(service)
    }
}

/// Both edits; what the inner one says comes before.
fn both(outer: &HeaderEdits, inner: &HeaderEdits) -> HeaderEdits {
    let mut edits = outer.clone();
    edits.add.extend(inner.add.clone());
    edits.set.extend(inner.set.clone());
    edits.remove.extend(inner.remove.iter().cloned());
    edits
}

/// Shares as weights that sum to the whole, each as near as can be; what comes to nothing is left out.
fn weigh(parts: Vec<Part>) -> Vec<Share> {
    let step = WHOLE / u64::from(WEIGHT_TOTAL);
    let mut left = u64::from(WEIGHT_TOTAL) - parts.iter().map(|part| part.share / step).sum::<u64>();
    let mut by_rest: Vec<_> = (0..parts.len()).collect();
    by_rest.sort_by_key(|index| std::cmp::Reverse(parts[*index].share % step));
    let mut weights: Vec<u64> = parts.iter().map(|part| part.share / step).collect();
    for index in by_rest {
        let more = left.min(1);
        weights[index] += more;
        left -= more;
    }
    let mut shares: Vec<Share> = Vec::new();
    for (part, weight) in parts.into_iter().zip(weights) {
        let weight = u32::try_from(weight).expect("invariant: no share is more than the whole");
        let (request_headers, response_headers) = part.edits;
        let same = |share: &&mut Share| {
            share.target == part.target
                && share.request_headers == request_headers
                && share.response_headers == response_headers
        };
        if let Some(share) = shares.iter_mut().find(same) {
            share.weight += weight;
        } else if weight > 0 {
            shares.push(Share { target: part.target, weight, request_headers, response_headers });
        }
    }
    shares
}

fn goes_round(kind: ConfigKind, field: &str, service: &ServiceName, path: &[ServiceName]) -> Diagnostic {
    let path: Vec<_> = path.iter().map(ServiceName::as_str).collect();
    Diagnostic {
        object: Object::Config(ConfigEntryKey { kind, name: service.to_string() }),
        field: field.to_owned(),
        reason: format!(
            "it goes round, or too deep, on the way {}; here the instances of {service} itself are called",
            path.join(" -> ")
        ),
        fix: "end the way at a service that is not on it".to_owned(),
        severity: Severity::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, share: u64) -> Part {
        let target = Target { service: name.parse().expect("a name"), subset: None };
        Part { target, share, edits: (HeaderEdits::default(), HeaderEdits::default()) }
    }

    #[test]
    fn shares_are_a_whole_and_as_near_as_can_be() {
        let third = WHOLE / 3;
        let shares = weigh(vec![part("a", third), part("b", third), part("c", WHOLE - 2 * third), part("d", 0)]);
        let weights: Vec<_> = shares.iter().map(|share| share.weight).collect();
        assert_eq!(weights.iter().sum::<u32>(), WEIGHT_TOTAL);
        assert!(weights.iter().all(|weight| weight.abs_diff(333_333) <= 1), "{weights:?}");
        let same = weigh(vec![part("a", WHOLE / 4), part("b", WHOLE / 2), part("a", WHOLE / 4)]);
        assert_eq!(same.iter().map(|share| share.weight).collect::<Vec<_>>(), [500_000, 500_000]);
    }
}
