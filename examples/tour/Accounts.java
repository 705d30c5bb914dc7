import java.util.*;
import java.util.stream.*;

/** Accounts and their bookings: objects, strings, streams, and a collector that walks them. */
public class Accounts {
    record Booking(String account, int day, long cents) {}

    public static void main(String[] arguments) {
        int records = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 1_500_000;
        Random random = new Random(7);
        List<Booking> bookings = new ArrayList<>();
        for (int n = 0; n < records; n++) {
            bookings.add(new Booking("account-" + random.nextInt(40_000), random.nextInt(365), random.nextInt(1_000_000)));
        }
        Map<String, Long> sums = bookings.stream().collect(Collectors.groupingBy(Booking::account, Collectors.summingLong(Booking::cents)));
        Map<Integer, Long> days = bookings.stream().collect(Collectors.groupingBy(Booking::day, Collectors.counting()));
        bookings.sort(Comparator.comparing(Booking::account).thenComparingInt(Booking::day));
        Booking middle = bookings.get(bookings.size() / 2);
        System.out.println(sums.size() + " " + days.get(7) + " " + Collections.max(sums.values()) + " " + middle);
    }
}
