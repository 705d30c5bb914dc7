import java.util.*;

/** Tables of strings, some of them short-lived: a generational collector. */
public class Tables {
    public static void main(String[] arguments) {
        int count = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 300_000;
        Map<String, int[]> table = new HashMap<>();
        for (int n = 0; n < count; n++) table.put("key" + n, new int[] {n, n * 2, n * 3});
        long total = 0;
        Random random = new Random(7);
        for (int n = 0; n < 4 * count; n++) {
            int[] value = table.get("key" + random.nextInt(count));
            total += value[n % 3];
            if (n % 8 == 0) table.put("key" + random.nextInt(count), new int[] {n, n, n});
        }
        System.out.println(table.size() + " " + total);
    }
}
