"""OpenTelemetry, which is optional: this is the one module that imports it."""

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, UpDownCounter, get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.trace import (
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        TracerProvider,
        get_tracer_provider,
        set_span_in_context,
    )
except ImportError as error:
    raise ImportError('OpenTelemetry is not installed: pip install "fedstack[metrics]"') from error

__all__ = [
    "Context",
    "Counter",
    "Histogram",
    "Meter",
    "MeterProvider",
    "NonRecordingSpan",
    "PrometheusMetricReader",
    "SdkMeterProvider",
    "Span",
    "SpanContext",
    "SpanKind",
    "Status",
    "StatusCode",
    "TraceFlags",
    "Tracer",
    "TracerProvider",
    "UpDownCounter",
    "get_meter_provider",
    "get_tracer_provider",
    "set_span_in_context",
]
