//! What a proxy tells of its traffic: its access log, and the traces that it takes part in.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::grpc_service::{GoogleGrpc, TargetSpecifier};
use envoy_types::pb::envoy::config::core::v3::{GrpcService, TypedExtensionConfig};
use envoy_types::pb::envoy::config::trace::v3::OpenTelemetryConfig;
use envoy_types::pb::envoy::config::trace::v3::tracing::Http as Provider;
use envoy_types::pb::envoy::config::trace::v3::tracing::http::ConfigType;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing as TracingMessage;
use envoy_types::pb::envoy::extensions::tracers::opentelemetry::samplers::v3::{
    ParentBasedSamplerConfig, TraceIdRatioBasedSamplerConfig,
};
use starling_model::{AccessLog, Percent, ServiceName, Tracing};
use starling_plan::Plan;

use super::proto::{any, duration, fraction};

/// Time for a collector to take what it is sent, as with the native proxy.
const SEND_TIME: std::time::Duration = std::time::Duration::from_secs(10);

/// What is read of a plan to say it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Telemetry {
    pub(super) access_log: Arc<AccessLog>,
    tracing: Arc<Tracing>,
    /// Whose spans they are, if there are any: listeners that are alike otherwise are shared by services.
    service: Option<ServiceName>,
}

impl Telemetry {
    pub(super) fn of(plan: &Plan) -> Self {
        let service = plan.tracing.collector.is_some().then(|| plan.service.clone());
        Self { access_log: Arc::clone(&plan.access_log), tracing: Arc::clone(&plan.tracing), service }
    }

    /// The traces of a listener, if it takes part in any. Envoy's tracer reads `traceparent` and no other
    /// form.
    pub(super) fn tracing(&self) -> Option<TracingMessage> {
        let (collector, service) = (self.tracing.collector.as_ref()?, self.service.as_ref()?);
        let target_uri = if collector.host.contains(':') {
            format!("[{}]:{}", collector.host, collector.port)
        } else {
            format!("{}:{}", collector.host, collector.port)
        };
        let google = GoogleGrpc { target_uri, stat_prefix: "spans".to_owned(), ..Default::default() };
        let config = OpenTelemetryConfig {
            grpc_service: Some(GrpcService {
                timeout: Some(duration(SEND_TIME)),
                target_specifier: Some(TargetSpecifier::GoogleGrpc(google)),
                ..Default::default()
            }),
            service_name: service.to_string(),
            sampler: Some(sampler(self.tracing.sampled)),
            ..Default::default()
        };
        let provider = Provider {
            name: "envoy.tracers.opentelemetry".to_owned(),
            config_type: Some(ConfigType::TypedConfig(any(&config))),
        };
        // Every request, of which the sampler then decides.
        Some(TracingMessage { provider: Some(provider), ..Default::default() })
    }
}

/// As the caller has decided; a share of those about which nobody has. Envoy's own sampling would pass over the caller.
fn sampler(share: Percent) -> TypedExtensionConfig {
    let ratio = TraceIdRatioBasedSamplerConfig { sampling_percentage: Some(fraction(share)) };
    let wrapped = TypedExtensionConfig {
        name: "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based".to_owned(),
        typed_config: Some(any(&ratio)),
    };
    TypedExtensionConfig {
        name: "envoy.tracers.opentelemetry.samplers.parent_based".to_owned(),
        typed_config: Some(any(&ParentBasedSamplerConfig { wrapped_sampler: Some(wrapped) })),
    }
}
